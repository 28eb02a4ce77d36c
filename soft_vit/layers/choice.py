"""Choose an attention for a number of tokens, by the measurements that the package ships.

`docs/atlas.md` shows how they were made and how to repeat them.
"""

import csv
import math
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from soft_vit.layers.attention import ATTENTIONS

SHIPPED = Path(__file__).with_name("atlas-fp32-pt2150-cpu-epyc.csv")
HEAD_DIM = 32

SOME_TOKENS = ("local", "atrous", "sparse", "longformer", "bigbird", "reformer")
"""Attention types in which a token sees only some of the others."""

MIXES_ALL = ATTENTIONS.keys() - {*SOME_TOKENS, "none"}
"""Attention types in which every token sees all others."""

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


class Measurement(NamedTuple):
    """Median time and peak memory of one layer; None where it was not measured."""

    kind: str
    mode: str
    head_dim: int
    tokens: int
    seconds: float | None
    megabytes: float | None


class Measurements(NamedTuple):
    """The rows of a table, and where and when they were measured."""

    machine: str
    date: str
    rows: Sequence[Measurement]


def choose_attention(
    num_tokens: int, memory: float | None = None, training: bool = False, kinds: Collection[str] | None = None
) -> Choice:
    """Return the fastest measured attention in which every token sees all others, for a square map of num_tokens.

    memory: the most MB that one layer of width 64 may take for one image.
    training: measure forward and backward instead of forward.
    kinds: choose among these attention types instead, such as those that learn your task.

    Between measured numbers of tokens, figures are interpolated by power laws. They are of one machine and heads of 32
    channels. Fast is not accurate: docs/gym shows what each attention type learns.

    ValueError outside of the measured range, for a type without measurements there, or if memory is too small for all.

    >>> choose_attention(196, training=True).source.startswith("measured at N = 196")
    True
    """
    table = shipped_table()
    mode = "training" if training else "inference"
    wanted = MIXES_ALL if kinds is None else kinds
    if not wanted:
        raise ValueError("kinds must hold at least one name of soft_vit.layers.ATTENTIONS, got none.")
    rows = [row for row in table.rows if (row.mode, row.head_dim) == (mode, HEAD_DIM) and row.kind in wanted]
    if unknown := sorted(set(kinds or ()) - {row.kind for row in rows}):
        raise ValueError(f"kinds must be names of soft_vit.layers.ATTENTIONS, got {unknown}.")
    measured = sorted({row.tokens for row in rows})
    if not measured[0] <= num_tokens <= measured[-1]:
        raise ValueError(f"num_tokens must be from {measured[0]} to {measured[-1]}, got {num_tokens}.")
    # The number itself, or its neighbours.
    index = sum(tokens < num_tokens for tokens in measured)
    around = measured[index : index + 1] if num_tokens in measured else measured[index - 1 : index + 1]
    source = f"measured at N = {' and '.join(map(str, around))}, {table.date}, {table.machine}"
    found = []
    for kind in {row.kind for row in rows}:
        own = sorted((row for row in rows if row.kind == kind and row.tokens in around), key=lambda row: row.tokens)
        seconds = [(row.tokens, row.seconds) for row in own if row.seconds]
        megabytes = [(row.tokens, row.megabytes) for row in own if row.megabytes]
        if len(seconds) == len(megabytes) == len(around):
            figures = interpolate(seconds, num_tokens), interpolate(megabytes, num_tokens)
            found.append(Choice(kind, dict(FIXED_TOKENS.get(kind, {})), *figures, source))
    if not found:
        raise ValueError(f"kinds must hold a type measured at {num_tokens} tokens, got {sorted(wanted)}.")
    fitting = [choice for choice in found if memory is None or choice.megabytes <= memory]
    if not fitting:
        smallest = min(found, key=lambda choice: choice.megabytes)
        raise ValueError(
            f"memory must be at least {smallest.megabytes:.3g} MB ({smallest.kind}) for {num_tokens} tokens, "
            f"got {memory}."
        )
    # The smallest of equally fast ones.
    return min(fitting, key=lambda choice: (choice.seconds, choice.megabytes))


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Return the value at x of power laws between neighbouring points (x, y), which must be in ascending order of x.

    The first and the last law continue beyond the ends; a single point is a constant. All numbers must be positive.
    """
    if len(points) == 1:
        return points[0][1]
    index = sum(x >= known for known, _ in points[1:-1])
    (x0, y0), (x1, y1) = points[index : index + 2]
    share = math.log(x / x0) / math.log(x1 / x0)
    return y0 ** (1 - share) * y1**share


@cache
def shipped_table() -> Measurements:
    """Read the shipped table; `# name: value` lines precede its columns."""
    lines = SHIPPED.read_text(encoding="utf-8").splitlines()
    head = dict(line[2:].split(": ", 1) for line in lines if line.startswith("#"))
    rows = [
        Measurement(
            row["kind"],
            row["mode"],
            int(row["head_dim"]),
            int(row["tokens"]),
            float(row["seconds"]) if row["seconds"] else None,
            float(row["megabytes"]) if row["megabytes"] else None,
        )
        for row in csv.DictReader(line for line in lines if not line.startswith("#"))
    ]
    return Measurements(head["machine"], head["date"], rows)
