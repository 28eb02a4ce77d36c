"""Masks of COCO: checked, decoded and encoded as pycocotools does it."""

import copy

import numpy as np
import pytest
from pycocotools import mask as reference

from soft_vit.data.coco_masks import check_segmentation, decode_segmentation, encode_masks

HEIGHT, WIDTH = 60, 90
SQUARE = [10, 10, 30, 10, 30, 30, 10, 30]


MASKS = {
    "blob": lambda y, x: (y - 20) ** 2 + (x - 40) ** 2 < 200,
    "empty": lambda y, x: np.zeros_like(y, bool),
    "full": lambda y, x: np.ones_like(y, bool),
    "first pixel": lambda y, x: (y == 0) & (x == 0),
    "last pixel": lambda y, x: (y == HEIGHT - 1) & (x == WIDTH - 1),
    "noise": lambda y, x: np.random.default_rng(0).random(y.shape) < 0.5,
    "stripes": lambda y, x: (x % 7 < 3) & (y % 5 > 1),
}


@pytest.mark.parametrize("shape", MASKS)
def test_run_lengths_are_those_of_pycocotools(shape):
    mask = MASKS[shape](*np.mgrid[:HEIGHT, :WIDTH])
    packed = reference.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()
    size, ends = [HEIGHT, WIDTH], np.flatnonzero(np.diff(mask.flatten(order="F"), prepend=False)).tolist()
    runs = np.diff([0, *ends, HEIGHT * WIDTH]).tolist()
    assert encode_masks(mask[None]) == [{"size": size, "counts": packed}]
    for counts in (packed, runs):
        checked, problem = check_segmentation({"size": size, "counts": counts}, HEIGHT, WIDTH)
        assert problem is None
        np.testing.assert_array_equal(decode_segmentation(checked, HEIGHT, WIDTH), mask)


def test_polygons_are_decoded_as_pycocotools_does():
    polygons = [SQUARE, [40.5, 3.25, 80.75, 20, 50, 55.5], [1, 2, 3, 4]]
    checked, problem = check_segmentation(copy.deepcopy(polygons), HEIGHT, WIDTH)
    assert problem is None
    rle = reference.merge(reference.frPyObjects(polygons[:2], HEIGHT, WIDTH))
    np.testing.assert_array_equal(decode_segmentation(checked, HEIGHT, WIDTH), reference.decode(rle))
    assert encode_masks(np.zeros((0, 5, 7), bool)) == []
