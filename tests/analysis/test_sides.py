"""One side, or height and width."""

import pytest

from soft_vit.analysis.sides import height_and_width


@pytest.mark.parametrize(("sides", "size"), [([224], (224, 224)), ([97, 203], (97, 203))])
def test_size(sides, size):
    assert height_and_width(sides) == size


@pytest.mark.parametrize("sides", [[64, 64, 64], [0], [64, -1]])
def test_what_is_no_size_is_refused(sides):
    with pytest.raises(ValueError, match="is of no image; give one side, or height and width"):
        height_and_width(sides)
