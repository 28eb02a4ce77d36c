"""Drawings of predictions: what is where, at sizes from one pixel to a panorama."""

import io

import numpy as np
import pytest
from PIL import Image

from soft_vit.predict.drawing import class_colors, draw_classes, draw_instances, draw_segmentation, index_image

GREY = 100


def grey(height: int, width: int) -> Image.Image:
    return Image.new("RGB", (width, height), (GREY, GREY, GREY))


def mixed(color: np.ndarray) -> np.ndarray:
    return (color + 1.0 * GREY) / 2


@pytest.mark.parametrize(("label", "ink"), [(3, (30, 30, 30)), (4, (255, 255, 255))])
def test_small_picture_is_enlarged_by_a_whole_factor_with_its_boxes(label, ink):
    """64 pixels become 384: the edges of a box lie at six times its coordinates. Its label is readable."""
    picture, color = grey(64, 64), class_colors(5)[label]
    pixels = np.asarray(draw_instances(picture, np.array([[10, 20, 40, 50]]), [label], ["kite"], [0.5]))
    assert pixels.shape == (384, 384, 3)
    np.testing.assert_array_equal(pixels[180, [60, 240]], [color, color])
    np.testing.assert_array_equal(pixels[240, 150], [GREY] * 3)
    assert {tuple(color.tolist()), ink} <= {tuple(pixel) for pixel in pixels[120:145, 60:140].reshape(-1, 3).tolist()}
    assert picture == grey(64, 64)


def test_smaller_mask_lies_on_a_larger_one_and_both_are_half_transparent():
    masks = np.zeros((2, 400, 400), dtype=bool)
    masks[0, 100:300, 100:300] = masks[1, 150:250, 150:250] = True
    boxes = np.array([[100, 100, 300, 300], [150, 150, 250, 250]])
    pixels = np.asarray(draw_instances(grey(400, 400), boxes, [0, 1], ["out", "in"], [0.9, 0.5], masks))
    expected = [mixed(class_colors(2)[1]), mixed(class_colors(2)[0]), [GREY] * 3]
    np.testing.assert_allclose(pixels[[240, 280, 350], [240, 200, 200]], expected, atol=1)


# None, larger than the picture, a point, turned around, outside.
BOXES = [[], [[-50, -50, 3000, 3000]], [[30, 30, 30, 30]], [[5, 5, 2, 1]], [[6000, 6000, 7000, 7000]]]


@pytest.mark.parametrize("size", [(1, 1), (63, 50), (30, 2000)])
def test_any_box_mask_and_name_on_any_picture(size):
    for boxes in BOXES:
        count = len(boxes)
        given = np.array(boxes, dtype=float).reshape(-1, 4), [0] * count, ["name " * 30] * count, [0.5] * count
        drawn = draw_instances(grey(*size), *given, np.zeros((count, *size), dtype=bool))
        factor = drawn.width // size[1]
        assert drawn.size == (factor * size[1], factor * size[0])
    drawn = draw_classes(grey(*size), ["a name that is longer than the picture " * 5, "b"], [0.7, 0.2])
    assert drawn.height > size[0]
    assert drawn.width >= 280


def lengths(drawn: Image.Image, color: np.ndarray) -> list[int]:
    """Numbers of pixels of a colour in the rows below a picture of 400 rows that have any."""
    return sorted(set((np.asarray(drawn)[400:] == color).all(-1).sum(1).tolist()) - {0})


def test_map_lies_on_the_picture_above_a_legend_of_the_classes_in_it():
    classes = np.zeros((400, 500), dtype=np.int64)
    classes[:, 250:] = 2
    drawn, colors = draw_segmentation(grey(400, 500), classes, ["wall", "sky", "tree"]), class_colors(3)
    np.testing.assert_allclose(np.asarray(drawn)[200, [100, 400]], mixed(colors[[0, 2]]), atol=1)
    assert [bool(lengths(drawn, color)) for color in colors] == [True, False, True]


@pytest.mark.parametrize("count", [3, 256, 400])
def test_index_image_survives_a_png(count):
    classes = np.arange(63 * 50).reshape(63, 50) % count
    stream = io.BytesIO()
    index_image(classes).save(stream, "PNG")
    read = Image.open(stream)
    np.testing.assert_array_equal(np.asarray(read), classes)
    if count <= 256:
        np.testing.assert_array_equal(np.asarray(read.convert("RGB")), class_colors(256)[classes])
