"""Augmentation moves labels with their image, covers the range of its options, and follows the seed."""

import pytest
import torch
from torch.nn import functional as F

from soft_vit.dense.segmentation.transforms import (
    PackSegmentation,
    SegRandomCrop,
    SegRandomFlip,
    SegRandomResize,
    SegResize,
    resize_within,
)


def picture(height, width):
    """Return an image whose first channel encodes the label of each pixel, in blocks of 16 x 16."""
    blocks = torch.randint(0, 20, (-(-height // 16), -(-width // 16)), dtype=torch.uint8)
    labels = blocks.repeat_interleave(16, 0).repeat_interleave(16, 1)[:height, :width]
    image = torch.stack([labels * 10, torch.full_like(labels, 7), labels])
    return {"img": image, "gt_seg_map": labels.contiguous(), "ori_shape": (height, width), "sample_idx": 3}


# Sizes as mmcv's imrescale gives them for the scale (2048, 512).
RESIZED = [((512, 683), (512, 683)), ((256, 256), (512, 512)), ((300, 2000), (307, 2048)), ((1000, 500), (1024, 512))]


@pytest.mark.parametrize(("size", "expected"), RESIZED)
def test_an_image_fits_into_the_scale(size, expected):
    assert resize_within(size, (2048, 512)) == expected
    assert resize_within(size[::-1], (512, 2048)) == expected[::-1]


@pytest.mark.parametrize("factor", [0.5, 1.7])
def test_labels_are_resized_with_their_image_except_in_a_test(factor):
    given = picture(64, 96)
    assert SegResize((64, 20)).transform(given)["img"].shape == (3, 20, 30)
    assert SegResize((64, 20)).transform(given)["gt_seg_map"] is given["gt_seg_map"]
    found = SegRandomResize((96, 64), (factor, factor)).transform(given)
    assert found["img"].shape[-2:] == found["gt_seg_map"].shape == (round(64 * factor), round(96 * factor))
    # Away from the edges of a block, the image still encodes the label.
    labels = found["gt_seg_map"].float()[None, None]
    inside = -F.max_pool2d(-labels, 5, 1, 2) == F.max_pool2d(labels, 5, 1, 2)
    assert inside.float().mean() > 0.1
    assert torch.equal((found["img"][0] / 10).round()[inside[0, 0]], found["gt_seg_map"].float()[inside[0, 0]])


@pytest.mark.parametrize("size", [(64, 96), (30, 96), (64, 20), (10, 11)])
def test_a_crop_is_a_window_of_both(size):
    given = picture(*size)
    corners = set()
    for _ in range(50):
        found = SegRandomCrop((32, 48)).transform(given)
        assert found["img"].shape[-2:] == found["gt_seg_map"].shape == (min(size[0], 32), min(size[1], 48))
        assert torch.equal(found["img"][2], found["gt_seg_map"])
        corners.add(tuple(found["img"][:, 0, 0].tolist()))
    assert (len(corners) > 1) == (size[0] > 32 or size[1] > 48)


def test_a_flip_mirrors_both():
    given = picture(24, 40)
    found = SegRandomFlip(1.0).transform(given)
    assert torch.equal(found["gt_seg_map"], given["gt_seg_map"].flip(1))
    assert torch.equal(found["img"], given["img"].flip(2))
    assert torch.equal(SegRandomFlip(0.0).transform(given)["img"], given["img"])


def test_a_packed_crop_does_not_keep_its_image():
    packed = PackSegmentation().transform(SegRandomCrop(16).transform(picture(64, 96)))
    sample = packed["data_samples"]
    assert packed["inputs"].untyped_storage().nbytes() == 3 * 16 * 16
    assert sample.gt_sem_seg.data.untyped_storage().nbytes() == 16 * 16
    assert sample.ori_shape == (64, 96)
    assert sample.sample_idx == 3
