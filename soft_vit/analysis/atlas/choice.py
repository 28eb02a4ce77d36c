"""Which attention to take for a number of tokens, read from the table that is shipped."""

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from soft_vit.analysis.atlas.crossover import interpolate
from soft_vit.analysis.atlas.groups import FIXED_TOKENS, MIXES_ALL
from soft_vit.analysis.atlas.table import Row, Table, read_table

SHIPPED = Path(__file__).with_name("atlas-fp32-pt2150-cpu-epyc.csv")
HEAD_DIM = 32


class Choice(NamedTuple):
    """An attention, what one layer of it takes at that number of tokens, and where that was measured.

    seconds and megabytes are of one image in a layer of width 64; weights and input are not in megabytes.
    """

    kind: str
    options: dict[str, Any]
    """With which it was measured, as `soft_vit.attn_layer` takes them; its defaults otherwise."""
    seconds: float
    megabytes: float
    source: str


def choose_attention(
    num_tokens: int, memory: float | None = None, training: bool = False, kinds: Collection[str] | None = None
) -> Choice:
    """The fastest measured attention in which every token sees all others, for a square map of num_tokens.

    memory: the most MB that one layer of width 64 may take for one image. training: count forward and backward
    instead of forward. kinds: choose among these instead, such as those that learn your task. Figures between measured
    numbers of tokens are interpolated by power laws, for heads of 32. The table is of one machine, and fast is not
    accurate: docs/gym says what each kind learns.

    Raises ValueError outside of the measured range, for a kind without measurements there, or where nothing fits into
    memory.

    >>> choose_attention(196, training=True).source.startswith("measured at N = 196")
    True
    """
    table = shipped_table()
    mode = "training" if training else "inference"
    wanted = MIXES_ALL if kinds is None else kinds
    if not wanted:
        raise ValueError(
            "kinds is empty; give names of soft_vit.layers.ATTENTIONS, or None for all that mix all tokens."
        )
    rows = [row for row in table.rows if row.mode == mode and row.head_dim == HEAD_DIM and row.kind in wanted]
    if unknown := sorted(set(kinds or ()) - {row.kind for row in rows}):
        raise ValueError(f"kinds={unknown} are not in the table; give names of soft_vit.layers.ATTENTIONS.")
    measured = sorted({row.tokens for row in rows})
    if not measured[0] <= num_tokens <= measured[-1]:
        raise ValueError(
            f"num_tokens={num_tokens} is outside of the table, which has {measured[0]} to {measured[-1]} tokens."
        )
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
        raise ValueError(f"None of kinds={sorted(wanted)} was measured at {num_tokens} tokens; give others.")
    fitting = [choice for choice in found if memory is None or choice.megabytes <= memory]
    if not fitting:
        least = min(found, key=lambda choice: choice.megabytes)
        raise ValueError(
            f"memory={memory} MB hold no attention of {num_tokens} tokens; {least.kind} takes the least, "
            f"{least.megabytes:.3g} MB."
        )
    # Of equally fast ones the smallest.
    return min(fitting, key=lambda choice: (choice.seconds, choice.megabytes))


@cache
def shipped_table() -> Table[Row]:
    """The table of measurements in this package."""
    return read_table(SHIPPED, Row)
