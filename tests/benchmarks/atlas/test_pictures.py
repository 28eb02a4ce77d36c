"""Pictures and the page of a small table."""

import re

import pytest

from benchmarks.atlas.crossover import QUANTITIES
from benchmarks.atlas.pictures import apart, plot_crossovers, plot_groups
from benchmarks.atlas.report import report
from benchmarks.atlas.table import AttentionRow, Table, read_table
from soft_vit.layers.choice import SHIPPED

TOKENS = (196, 784, 3136)


def row(kind: str, tokens: int, ratio: float, mode: str, note: str = "") -> AttentionRow:
    return AttentionRow(
        kind, "N", mode, 32, tokens, 9, 2e-3, 1e-3, 3e-3, ratio, ratio * 0.9, ratio * 1.1, tokens * ratio, note
    )


ROWS = [row("softmax", n, 1, mode) for n in TOKENS for mode in ("inference", "training")]
ROWS += [row("soft", n, 1000 / n, mode, "unstable") for n in TOKENS for mode in ("inference", "training")]
ROWS += [row("linear", n, 2, "training") for n in TOKENS[:2]]
ROWS += [
    AttentionRow("linear", "N", "training", 32, 3136, 0, *[None] * 6, 9e4, "skipped: 90000 MB counted, more than 8000")
]
TABLE = Table("a machine", "2026-11-23", "python -m benchmarks atlas", ROWS)


def test_pictures_are_written(tmp_path):
    for quantity in QUANTITIES:
        plot_groups(ROWS, quantity, 32, tmp_path / "curves.png")
        assert (tmp_path / "curves.png").stat().st_size > 20_000
    plot_crossovers(ROWS, 32, tmp_path / "crossovers.png")
    assert (tmp_path / "crossovers.png").stat().st_size > 10_000


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


def test_page_says_what_was_measured_and_what_was_not():
    page = report(TABLE)
    assert page.startswith("# The atlas of attentions\n\n`python -m benchmarks atlas`\n\n2026-11-23; a machine.")
    assert "6 of 14 timed rows are unstable" in page
    assert "| `soft` | N | 1000 (900 - 1100) | 1000 (900 - 1100) | 1000 |" in page
    assert "| `linear` | N | not measured | never (2.00 at 784) | never (28.70 at 3136) |" in page
    assert r"| `soft` | 2 ms (5.10)\*<br>1,000 MB (5.10) |" in page
    assert "| skipped: 90000 MB counted, more than 8000<br>90,000 MB (28.70) |" in page


def test_committed_page_is_of_the_shipped_table():
    """Figures in the file have four digits."""
    page = (SHIPPED.parents[2] / "docs" / "atlas" / "figures.md").read_text()
    assert page == report(read_table(SHIPPED))
    assert not re.search(r"\bnan\b|None", page)
