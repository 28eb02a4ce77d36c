"""The area that a drawn outline covers."""

import numpy as np
import pytest

from soft_vit.data import CLASSES, shape_drawing


@pytest.mark.parametrize("name", CLASSES)
def test_coverage_has_the_area_of_the_outline(name):
    # Turned, because edges along the scan lines can only be placed to a quarter of a pixel.
    turn = np.array([[0.8, 0.6], [-0.6, 0.8]])
    edges = (shape_drawing._OUTLINES[name].reshape(-1, 2) @ turn * 40.3 + 43.7).reshape(-1, 4)
    x0, y0, x1, y1 = edges.T
    area = abs((x0 * y1 - x1 * y0).sum()) / 2
    alpha = shape_drawing._coverage(edges, 90, 85)
    assert alpha.shape == (85, 90)
    assert alpha.min() >= 0
    assert alpha.max() <= 1
    assert alpha.sum() == pytest.approx(area, rel=2e-3)
    assert (alpha >= 0.5).sum() == pytest.approx(area, rel=2e-2)
