"""Drawings of predictions: what is where, at sizes from one pixel to a panorama."""

import io

import numpy as np
import pytest
from PIL import Image

from soft_vit.prediction.class_colors import class_colors
from soft_vit.prediction.drawing import draw_classes, draw_instances, draw_segmentation, index_image

GREY = 100


def grey(height: int, width: int) -> Image.Image:
    return Image.new("RGB", (width, height), (GREY, GREY, GREY))


def test_small_picture_is_enlarged_by_a_whole_factor():
    """64 pixels become 384, a box at 10..40 with them, and its colour lies on its edge."""
    drawn = draw_instances(grey(64, 64), np.array([[10, 20, 40, 50]]), [3], ["kite"])
    pixels = np.asarray(drawn)
    assert drawn.size == (384, 384)
    np.testing.assert_array_equal(pixels[180, 60], class_colors(4)[3])
    np.testing.assert_array_equal(pixels[180, 240], class_colors(4)[3])
    np.testing.assert_array_equal(pixels[210, 150], [GREY] * 3)


def test_large_picture_keeps_its_size():
    drawn = draw_instances(grey(700, 1001), np.array([[100, 200, 400, 500.0]]), [0], ["kite"], [0.5])
    assert drawn.size == (1001, 700)


def test_mask_is_half_transparent_with_a_full_outline():
    mask = np.zeros((1, 400, 500), dtype=bool)
    mask[0, 100:300, 150:350] = True
    pixels = np.asarray(draw_instances(grey(400, 500), np.array([[150, 100, 350, 300]]), [1], ["a"], [0.9], mask))
    color = class_colors(2)[1]
    np.testing.assert_allclose(pixels[250, 250], (color + 1.0 * GREY) / 2, atol=0.5)
    np.testing.assert_array_equal(pixels[350, 250], [GREY] * 3)
    np.testing.assert_array_equal(pixels[200, 150], color)


def test_smaller_mask_lies_on_a_larger_one():
    masks = np.ones((2, 400, 400), dtype=bool)
    masks[0] = False
    masks[0, 150:250, 150:250] = True
    boxes = np.array([[150, 150, 250, 250], [0, 0, 400, 400]])
    pixels = np.asarray(draw_instances(grey(400, 400), boxes, [0, 1], ["in", "out"], None, masks))
    colors = class_colors(2)
    np.testing.assert_allclose(pixels[200, 200], (colors[0] + 1.0 * GREY) / 2, atol=0.5)
    np.testing.assert_allclose(pixels[300, 200], (colors[1] + 1.0 * GREY) / 2, atol=0.5)


def test_name_stands_in_its_color_at_its_box():
    pixels = np.asarray(draw_instances(grey(400, 500), np.array([[200, 150, 300, 300]]), [2], ["a"], [0.5]))
    above = pixels[150 - 10 : 150 - 4, 200:220].reshape(-1, 3)
    assert (above == class_colors(3)[2]).all(1).any()


@pytest.mark.parametrize(
    "boxes",
    [
        np.zeros((0, 4)),
        np.array([[-50, -50, 700, 800]]),
        np.array([[30, 30, 30, 30]]),
        np.array([[5, 5, 2, 1]]),
        np.array([[600, 600, 700, 700]]),
    ],
    ids=["none", "larger than the picture", "a point", "turned around", "outside"],
)
@pytest.mark.parametrize("size", [(1, 1), (63, 50), (500, 401), (30, 2000)])
def test_any_box_on_any_picture(boxes, size):
    count = len(boxes)
    drawn = draw_instances(grey(*size), boxes, [0] * count, ["name " * 30] * count, [0.5] * count)
    factor = drawn.width // size[1]
    assert drawn.size == (factor * size[1], factor * size[0])


def test_empty_mask_is_no_mistake():
    masks = np.zeros((1, 50, 60), dtype=bool)
    plain = draw_instances(grey(50, 60), np.array([[1, 1, 9, 9]]), [0], ["a"])
    assert draw_instances(grey(50, 60), np.array([[1, 1, 9, 9]]), [0], ["a"], None, masks) == plain


def test_bars_are_as_long_as_the_scores_and_stand_below_the_picture():
    drawn = draw_classes(grey(400, 500), ["first", "second", "third"], [1.0, 0.5, 0.0])
    assert drawn.width == 500
    panel = np.asarray(drawn)[400:]
    bar = np.asarray(draw_classes(grey(400, 500), ["first"], [1.0]))[400:]
    color = bar[len(bar) // 2, 400 - 80]
    lengths = [(row == color).all(-1).sum() for row in panel]
    longest = max(lengths)
    assert sorted({length for length in lengths if length}) == pytest.approx([longest / 2, longest], abs=1)


@pytest.mark.parametrize("size", [(1, 1), (900, 40), (40, 900), (333, 500)])
def test_classes_of_any_picture(size):
    drawn = draw_classes(grey(*size), ["a name that is longer than the picture " * 5, "b"], [0.7, 0.2])
    assert drawn.height > size[0]
    # The text has a width of its own.
    assert drawn.width >= 280


def test_map_lies_on_the_picture_and_its_legend_beside_it():
    classes = np.zeros((400, 500), dtype=np.int64)
    classes[:, 250:] = 2
    pixels = np.asarray(draw_segmentation(grey(400, 500), classes, ["wall", "sky", "tree"]))
    colors = class_colors(3)
    np.testing.assert_allclose(pixels[200, 100], (colors[0] + 1.0 * GREY) / 2, atol=1)
    np.testing.assert_allclose(pixels[200, 400], (colors[2] + 1.0 * GREY) / 2, atol=1)
    legend = pixels[:, 500:].reshape(-1, 3)
    shown = [(legend == color).all(1).any() for color in colors]
    # Only what is in the picture.
    assert shown == [True, False, True]


def test_long_legend_has_columns():
    classes = np.arange(150).repeat(30 * 30).reshape(300, 450)
    drawn = draw_segmentation(grey(300, 450), classes, [f"class {i}" for i in range(150)])
    legend = np.asarray(drawn)[:, 450:].reshape(-1, 3)
    assert all((legend == color).all(1).any() for color in class_colors(150))


def test_drawing_leaves_its_input_alone():
    picture, classes, masks = grey(500, 500), np.ones((500, 500), dtype=np.int64), np.ones((1, 500, 500), dtype=bool)
    draw_instances(picture, np.array([[1, 1, 400, 400]]), [0], ["a"], [0.5], masks)
    draw_segmentation(picture, classes, ["a", "b"])
    draw_classes(picture, ["a"], [1.0])
    assert picture == grey(500, 500)
    assert classes.all()


def test_arrays_and_pictures_with_transparency_are_pictures():
    box = np.array([[1, 1, 30, 30]])
    expected = draw_instances(grey(50, 60), box, [0], ["a"])
    assert draw_instances(np.asarray(grey(50, 60)), box, [0], ["a"]) == expected
    assert draw_instances(grey(50, 60).convert("RGBA"), box, [0], ["a"]) == expected


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
