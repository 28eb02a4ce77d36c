"""Colours of classes: fixed, distinct, and apart for eyes without red or green cones."""

import colorsys

import numpy as np
import pytest

from soft_vit.prediction.class_colors import class_colors, text_color

# sRGB's linear primaries to XYZ (IEC 61966-2-1), and linear RGB to what a deuteranope and a protanope see by another
# model than the package's (Vienot, Brettel, Mollon 1999).
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
EYES = {
    "all cones": np.eye(3),
    "deuteranope": np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]),
    "protanope": np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]]),
}


def linear(colors: np.ndarray) -> np.ndarray:
    values = np.asarray(colors, dtype=np.float64) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def nearest(colors: np.ndarray, eye: str) -> float:
    """Distance of the two most alike colours in CIELAB (1976) for an eye."""
    xyz = (linear(colors) @ EYES[eye].T).clip(0, 1) @ XYZ.T / XYZ.sum(1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    lab = np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)
    distance = np.linalg.norm(lab[:, None] - lab[None], axis=-1)
    return distance[~np.eye(len(lab), dtype=bool)].min()


@pytest.mark.parametrize("count", [0, 1, 7, 20, 151])
def test_class_keeps_its_color(count):
    assert class_colors(count).shape == (count, 3)
    assert class_colors(count).dtype == np.uint8
    np.testing.assert_array_equal(class_colors(count), class_colors(1000)[:count])


def test_thousand_colors_are_distinct_and_there_is_no_last_class():
    assert len(np.unique(class_colors(1000), axis=0)) == 1000
    assert len(class_colors(10000)) == 10000


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("count", [10, 20, 80])
def test_apart_for_every_eye_more_than_equally_spaced_hues(count, eye):
    hues = [colorsys.hsv_to_rgb(i / count, 1, 1) for i in range(count)]
    assert nearest(class_colors(count), eye) > nearest(255 * np.array(hues), eye)


def test_text_can_be_read_on_every_color():
    # Black and white against the grey that is worst for both: (L + 0.05)^2 = 0.05 * 1.05.
    least = np.sqrt(1.05 / 0.05)
    for color in class_colors(500):
        back = linear(color) @ XYZ[1] + 0.05
        text = linear(text_color(color)) @ XYZ[1] + 0.05
        assert max(back, text) / min(back, text) >= least * (1 - 1e-6)
