"""Choose an attention for a number of tokens, by the measurements that the package ships.

`docs/atlas.md` shows how they were made and how to repeat them.
"""

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from soft_vit.layers.attention import ATTENTIONS
from soft_vit.text_tables import read_csv

SHIPPED = Path(__file__).with_name("atlas-fp32-pt2141-cpu-epyc.csv")
GYM = Path(__file__).with_name("gym.csv")
HEAD_DIM = "32"

SOME_TOKENS = ("local", "atrous", "sparse", "longformer", "bigbird", "reformer")
"""Attention types in which a token sees only some of the others."""

MIXES_ALL = ATTENTIONS.keys() - {*SOME_TOKENS, "none"}
"""Attention types in which every token sees all others."""

MOST_LOST = 5.0
"""Points below softmax in the gym at which an attention type is not chosen by default."""

FIXED_TOKENS: dict[str, dict[str, Any]] = {
    "soft": {"max_bottleneck": (7, 7)},
    "soft_norm": {"max_bottleneck": (7, 7)},
    "soft_plus": {"max_bottleneck": (7, 7)},
    "spatial_reduction": {"linear": True},
}
"""Options that keep the number of reduced tokens at 49 as the map grows; the other types do so by default."""


class Choice(NamedTuple):
    """An attention type, and the time and memory of one layer of it at that number of tokens.

    seconds and megabytes: of one image in a layer of width 64; megabytes do not include weights and input.
    """

    kind: str
    options: dict[str, Any]
    """The options of the measured layer, as `soft_vit.attn_layer` takes them."""
    seconds: float
    megabytes: float
    source: str
    score: float | None = None
    """Its mean accuracy in the gym, in percent; None without a measurement."""
    trade: str = ""
    """What the fastest of all types would gain and lose, in words; empty if it is this one.

    If no type that learns nearly what softmax does has so little memory, what this one loses.
    """


class Measurements(NamedTuple):
    """A table: the machine, the date, and (seconds, megabytes) of a type in a mode at a number of tokens."""

    machine: str
    date: str
    figures: Mapping[tuple[str, str, int], tuple[float, float]]


def choose_attention(
    num_tokens: int, memory: float | None = None, training: bool = False, kinds: Collection[str] | None = None
) -> Choice:
    """Return the fastest measured attention that learns nearly what softmax does, for a square map of num_tokens.

    memory: the most MB that one layer of width 64 may take for one image. If only types that learn less fit, the
        fastest of them is returned, and its `trade` says what it loses.
    training: measure forward and backward instead of forward.
    kinds: choose among these attention types instead of those in which every token sees all others and whose mean
        accuracy in docs/gym is at most `MOST_LOST` points below that of softmax.

    Between measured numbers of tokens, figures are interpolated by power laws. They are of one machine and heads of 32
    channels.

    ValueError outside of the measured range, for a type without measurements there, or if memory is too small for all.

    >>> choose_attention(196, training=True).source.startswith("measured at N = 196")
    True
    """
    table = shipped_table()
    mode = "training" if training else "inference"
    scores = gym_scores()
    good = {kind for kind in MIXES_ALL if scores.get(kind, 0.0) >= scores["softmax"] - MOST_LOST}
    wanted = {kinds} if isinstance(kinds, str) else set(kinds or MIXES_ALL)
    figures = {(kind, tokens): both for (kind, of, tokens), both in table.figures.items() if of == mode}
    if unknown := sorted(wanted - {kind for kind, _ in figures} if kinds else ()):
        raise ValueError(f"kinds must be names of soft_vit.layers.ATTENTIONS, got {unknown}.")
    measured = sorted({tokens for _, tokens in figures})
    if not isinstance(num_tokens, Real) or not measured[0] <= num_tokens <= measured[-1]:
        raise ValueError(f"num_tokens must be a number from {measured[0]} to {measured[-1]}, got {num_tokens}.")
    # The number itself, or its neighbours.
    index = sum(tokens < num_tokens for tokens in measured)
    around = measured[index : index + 1] if num_tokens in measured else measured[index - 1 : index + 1]
    source = f"measured at N = {' and '.join(map(str, around))}, {table.date}, {table.machine}"
    found = []
    for kind in wanted:
        if all((kind, tokens) in figures for tokens in around):
            pairs = zip(*(figures[kind, tokens] for tokens in around), strict=True)
            both = (interpolate(list(zip(around, values, strict=True)), num_tokens) for values in pairs)
            found.append(Choice(kind, dict(FIXED_TOKENS.get(kind, {})), *both, source, scores.get(kind)))
    if not found:
        raise ValueError(f"kinds must hold a type measured at {num_tokens} tokens, got {sorted(wanted)}.")
    if not (fitting := [choice for choice in found if memory is None or choice.megabytes <= memory]):
        smallest = min(found, key=lambda choice: choice.megabytes)
        least = f"{smallest.megabytes:.3g} MB ({smallest.kind})"
        raise ValueError(f"memory must be at least {least} for {num_tokens} tokens, got {memory}.")
    # By size, equally fast ones.
    fitting.sort(key=lambda choice: (choice.seconds, choice.megabytes))
    fastest = fitting[0]
    best = next((choice for choice in fitting if kinds or choice.kind in good), None)
    if best is None:
        score = "no score" if fastest.score is None else f"{fastest.score:.0f} %"
        trade = f"in the gym it has {score} and softmax {scores['softmax']:.0f} %"
        if learning := [choice for choice in found if choice.kind in good]:
            least = min(learning, key=lambda choice: choice.megabytes)
            trade += f"; {least.kind} has {least.score:.0f} % and takes {least.megabytes:.3g} MB"
        return fastest._replace(trade=trade)
    if best is fastest:
        return best
    trade = f"{fastest.kind} takes {fastest.seconds / best.seconds:.2g} times as long"
    if best.score and fastest.score:
        trade += f"; in the gym it has {fastest.score:.0f} % instead of {best.score:.0f} %"
    return best._replace(trade=trade)


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Return the value at x of the power law through two points (x, y), or of a constant through one.

    All numbers must be positive.
    """
    if len(points) == 1:
        return points[0][1]
    (x0, y0), (x1, y1) = points
    share = math.log(x / x0) / math.log(x1 / x0)
    return y0 ** (1 - share) * y1**share


@cache
def gym_scores() -> dict[str, float]:
    """Return the mean accuracy of attention types in the tasks of docs/gym that all of them were trained for."""
    return {row["kind"]: float(row["score"]) for row in read_csv(GYM)}


@cache
def shipped_table() -> Measurements:
    """Read the shipped table; `# name: value` lines precede its columns, and what was not measured is empty."""
    lines = SHIPPED.read_text(encoding="utf-8").splitlines()
    head = dict(line[2:].split(": ", 1) for line in lines if line.startswith("#"))
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    figures = {
        (row["kind"], row["mode"], int(row["tokens"])): (float(row["seconds"]), float(row["megabytes"]))
        for row in rows
        if row["head_dim"] == HEAD_DIM and row["seconds"] and row["megabytes"]
    }
    return Measurements(head["machine"], head["date"], figures)
