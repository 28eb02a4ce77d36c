"""Crossovers of power laws, against closed forms."""

import pytest

from benchmarks.atlas.crossover import crossover

TOKENS = (196, 784, 3136, 12544)


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
