"""Crossovers of power laws, against closed forms."""

import pytest

from benchmarks.atlas.crossover import crossings, crossover
from benchmarks.atlas.table import AttentionRow

TOKENS = (196, 784, 3136, 12544)


def row(kind: str, tokens: int, ratio: float = 1.0, megabytes: float = 1.0, mode: str = "training") -> AttentionRow:
    return AttentionRow(kind, "N", mode, 32, tokens, 9, ratio, ratio, ratio, ratio, ratio / 2, ratio * 2, megabytes)


@pytest.mark.parametrize(
    ("ratios", "place"),
    [
        # c / N crosses one at c, wherever the points lie.
        ([(n, 1000 / n) for n in TOKENS], 1000),
        ([(n, (700 / n) ** 0.3) for n in TOKENS], 700),
        ([(n, 100 / n) for n in TOKENS], "always"),
        ([(n, 1e5 / n) for n in TOKENS], "never"),
        # What counts is the last time.
        ([(1, 0.5), (10, 2), (100, 0.5)], 10**1.5),
        ([(1, 2), (10, 0.5), (100, 1)], "never"),
        ([(1, 1), (10, 0.5)], 1),
    ],
)
def test_crossover(ratios, place):
    found = crossover(ratios)
    assert found == (place if isinstance(place, str) else pytest.approx(place))


def test_crossings_of_a_table():
    rows = [row("softmax", n, megabytes=n / 100) for n in TOKENS]
    rows += [row("linear", n, 1000 / n, megabytes=20) for n in reversed(TOKENS)]
    # Not timed at the largest.
    rows += [row("gaussian", n, 1.5, megabytes=n) for n in TOKENS[:3]]
    rows += [AttentionRow("gaussian", "N^2", "training", 32, TOKENS[3], 0, *[None] * 7, note="skipped")]
    found = crossings(rows, 32)
    linear = found["linear", "training"]
    assert (linear.lower, linear.place, linear.upper) == pytest.approx((500, 1000, 2000))
    assert found["linear", "memory"].place == pytest.approx(2000)
    gaussian = found["gaussian", "training"]
    assert (gaussian.place, gaussian.last, gaussian.last_ratio) == ("never", 3136, 1.5)
    assert found["gaussian", "memory"].last_ratio == pytest.approx(100)
    assert set(found) == {(kind, what) for kind in ("linear", "gaussian") for what in ("training", "memory")}
    assert not crossings(rows, 64)
