"""Drawings of predictions: what is where, at sizes from one pixel to a panorama."""

import io

import numpy as np
import pytest
from PIL import Image

from soft_vit.predict.drawing import class_colors, draw_classes, draw_instances, draw_segmentation, index_image

GREY = 100


def grey(height: int, width: int) -> Image.Image:
    return Image.new("RGB", (width, height), (GREY, GREY, GREY))


def test_class_keeps_its_color_at_any_count():
    many = class_colors(1000)
    assert many.dtype == np.uint8
    for count in (0, 1, 7, 20, 151):
        np.testing.assert_array_equal(class_colors(count), many[:count])
    assert len(np.unique(class_colors(151), axis=0)) == 151


def test_small_picture_is_enlarged_by_a_whole_factor_with_its_boxes():
    """64 pixels become 384: the edges of a box lie at six times its coordinates."""
    picture = grey(64, 64)
    drawn = draw_instances(picture, np.array([[10, 20, 40, 50]]), [3], ["kite"], [0.5])
    pixels = np.asarray(drawn)
    assert drawn.size == (384, 384)
    for x in (60, 240):
        np.testing.assert_array_equal(pixels[180, x], class_colors(4)[3])
    np.testing.assert_array_equal(pixels[210, 150], [GREY] * 3)
    assert picture == grey(64, 64)
    assert draw_instances(grey(700, 1001), np.array([[1.0, 2, 4, 5]]), [0], ["a"], [0.5]).size == (1001, 700)


def test_smaller_mask_lies_on_a_larger_one_and_both_are_half_transparent():
    masks = np.zeros((2, 400, 400), dtype=bool)
    masks[0, 100:300, 100:300] = masks[1, 150:250, 150:250] = True
    boxes = np.array([[100, 100, 300, 300], [150, 150, 250, 250]])
    pixels = np.asarray(draw_instances(grey(400, 400), boxes, [0, 1], ["out", "in"], [0.9, 0.5], masks))
    colors = class_colors(2)
    np.testing.assert_allclose(pixels[240, 240], (colors[1] + 1.0 * GREY) / 2, atol=1)
    np.testing.assert_allclose(pixels[280, 200], (colors[0] + 1.0 * GREY) / 2, atol=1)
    np.testing.assert_array_equal(pixels[350, 200], [GREY] * 3)
    small = np.asarray(draw_instances(grey(50, 60), boxes[:1] / 8, [0], ["a"], [0.5], masks[:1, ::8, :60]))
    assert small.shape == (350, 420, 3)


def test_label_stands_in_its_box():
    """In the colour of the class, with dark text on a light colour and the reverse."""
    for label, ink in ((3, (30, 30, 30)), (4, (255, 255, 255))):
        drawn = draw_instances(grey(400, 500), np.array([[200, 150, 300, 300]]), [label], ["a"], [0.5])
        found = np.asarray(drawn)[150:175, 202:230]
        assert {tuple(class_colors(5)[label].tolist()), ink} <= {
            tuple(pixel) for pixel in found.reshape(-1, 3).tolist()
        }


BOXES = {
    "none": np.zeros((0, 4)),
    "larger than the picture": np.array([[-50, -50, 3000, 3000]]),
    "a point": np.array([[30, 30, 30, 30]]),
    "turned around": np.array([[5, 5, 2, 1]]),
    "outside": np.array([[6000, 6000, 7000, 7000]]),
}


@pytest.mark.parametrize("size", [(1, 1), (63, 50), (500, 401), (30, 2000)])
def test_any_box_mask_and_name_on_any_picture(size):
    for boxes in BOXES.values():
        count = len(boxes)
        masks = np.zeros((count, *size), dtype=bool)
        drawn = draw_instances(grey(*size), boxes, [0] * count, ["name " * 30] * count, [0.5] * count, masks)
        factor = drawn.width // size[1]
        assert drawn.size == (factor * size[1], factor * size[0])
    drawn = draw_classes(grey(*size), ["a name that is longer than the picture " * 5, "b"], [0.7, 0.2])
    assert drawn.height > size[0]
    assert drawn.width >= 280


def lengths(drawn: Image.Image, height: int, color: np.ndarray) -> set[int]:
    """Pixels of a colour in each row below the picture that has any."""
    counts = (np.asarray(drawn)[height:] == color).all(-1).sum(1)
    return set(counts[counts > 0].tolist())


def test_bars_are_as_long_as_the_scores():
    bars = sorted(lengths(draw_classes(grey(400, 500), ["a", "b", "c"], [1.0, 0.5, 0.0]), 400, (0, 114, 178)))
    assert bars[1:] == pytest.approx([bars[2] / 2, bars[2]], abs=1)
    assert bars[0] < 20


def test_map_lies_on_the_picture_above_a_legend_of_the_classes_in_it():
    classes = np.zeros((400, 500), dtype=np.int64)
    classes[:, 250:] = 2
    drawn = draw_segmentation(grey(400, 500), classes, ["wall", "sky", "tree"])
    pixels, colors = np.asarray(drawn), class_colors(3)
    np.testing.assert_allclose(pixels[200, 100], (colors[0] + 1.0 * GREY) / 2, atol=1)
    np.testing.assert_allclose(pixels[200, 400], (colors[2] + 1.0 * GREY) / 2, atol=1)
    assert [bool(lengths(drawn, 400, color)) for color in colors] == [True, False, True]


@pytest.mark.parametrize("count", [3, 256, 400])
def test_index_image_survives_a_png(count):
    classes = np.random.default_rng(0).integers(0, count, (63, 50))
    classes[0, 0] = count - 1
    stream = io.BytesIO()
    index_image(classes).save(stream, "PNG")
    read = Image.open(stream)
    np.testing.assert_array_equal(np.asarray(read), classes)
    if count <= 256:
        np.testing.assert_array_equal(np.asarray(read.convert("RGB")), class_colors(256)[classes])
