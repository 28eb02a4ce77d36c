"""Labels in pictures."""

import pytest

from benchmarks.atlas.pictures import apart


@pytest.mark.parametrize(
    ("places", "moved"),
    [
        ([], []),
        ([5.0], [5]),
        ([0, 20, 40], [0, 20, 40]),
        ([1, 1], [-4, 6]),
        ([30, 0, 1, 2], [30, -9, 1, 11]),
        # A label that is pushed pushes the next.
        ([0, 0, 10], [-20 / 3, 10 / 3, 40 / 3]),
    ],
)
def test_labels_lie_apart(places, moved):
    assert apart(places, 10) == pytest.approx(moved)
