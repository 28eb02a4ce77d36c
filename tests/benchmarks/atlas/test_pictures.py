"""Labels in pictures, and the page of the shipped table."""

import re

import pytest

from benchmarks.atlas.pictures import apart
from benchmarks.atlas.report import report
from benchmarks.atlas.table import read_table
from soft_vit.layers.choice import SHIPPED


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


def test_committed_page_is_of_the_shipped_table():
    """Figures in the file have four digits."""
    page = (SHIPPED.parents[2] / "docs" / "atlas" / "figures.md").read_text()
    assert page == report(read_table(SHIPPED))
    assert not re.search(r"\bnan\b|None", page)
