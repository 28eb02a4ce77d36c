"""The number of tokens above which an attention takes less time or memory than fused softmax attention."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from benchmarks.atlas.table import AttentionRow

BASE = "softmax"
QUANTITIES = ("inference", "training", "memory")
"""Time of both modes, and memory of training."""

Place = float | Literal["always", "never"]


def crossover(ratios: Sequence[tuple[float, float]]) -> Place:
    """Return the x above which ratios stay below one: pairs (x, ratio) in ascending order, power laws between them.

    "always" if all ratios are below one, "never" if the last one is not.
    """
    above = [index for index, (_, ratio) in enumerate(ratios) if ratio >= 1]
    if not above:
        return "always"
    if above[-1] == len(ratios) - 1:
        return "never"
    (x0, r0), (x1, r1) = ratios[above[-1] : above[-1] + 2]
    return x0 * (x1 / x0) ** (math.log(r0) / math.log(r0 / r1))


class Crossing(NamedTuple):
    """Where an attention crosses softmax, by median and quartiles of ratios; the largest N, and the ratio there."""

    lower: Place
    place: Place
    upper: Place
    last: int
    last_ratio: float


def ratios(row: AttentionRow, quantity: str, rows: Sequence[AttentionRow]) -> tuple[float, float, float] | None:
    """Return a row's ratio to softmax, median and quartiles, in one of `QUANTITIES`; None where it was not measured.

    Memory is counted, so its quartiles equal it.
    """
    if quantity == "memory":
        case = BASE, "training", row.head_dim, row.tokens
        of_softmax = [o.megabytes for o in rows if (o.kind, o.mode, o.head_dim, o.tokens) == case and o.megabytes]
        if row.mode != "training" or not row.megabytes or not of_softmax:
            return None
        return (row.megabytes / of_softmax[0],) * 3
    if row.mode != quantity or row.ratio is None or row.ratio_lower is None or row.ratio_upper is None:
        return None
    return row.ratio, row.ratio_lower, row.ratio_upper


def crossings(rows: Sequence[AttentionRow], head_dim: int) -> dict[tuple[str, str], Crossing]:
    """Return the crossings of all attentions except softmax for heads of one width, by name and quantity."""
    curves: dict[tuple[str, str], list[tuple[int, tuple[float, float, float]]]] = {}
    for row in sorted(rows, key=lambda row: row.tokens):
        for quantity in QUANTITIES:
            found = ratios(row, quantity, rows)
            if row.head_dim == head_dim and row.kind != BASE and found:
                curves.setdefault((row.kind, quantity), []).append((row.tokens, found))
    crossed = {}
    for key, curve in curves.items():
        median, lower, upper = (crossover([(tokens, found[i]) for tokens, found in curve]) for i in range(3))
        crossed[key] = Crossing(lower, median, upper, last=curve[-1][0], last_ratio=curve[-1][1][0])
    return crossed


def crossing_cell(crossing: Crossing | None) -> str:
    """Return a cell such as `870 (820 - 930)`, `always`, or `never (1.3 at 3136)`."""
    if crossing is None:
        return "not measured"
    if crossing.place == crossing.lower == crossing.upper:
        text = _place(crossing.place)
    else:
        text = f"{_place(crossing.place)} ({_place(crossing.lower)} - {_place(crossing.upper)})"
    return f"never ({crossing.last_ratio:.2f} at {crossing.last})" if crossing.place == "never" else text


def _place(place: Place) -> str:
    return place if isinstance(place, str) else f"{float(f'{place:.2g}'):.0f}"
