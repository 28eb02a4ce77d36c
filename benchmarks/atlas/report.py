"""The atlas in words: crossovers, and time and memory at every number of tokens."""

from collections.abc import Sequence

from benchmarks.atlas.crossover import QUANTITIES, Crossing, Place, crossings, memory_ratio
from benchmarks.atlas.groups import GROUPS, measured_with
from benchmarks.atlas.table import UNSTABLE, AttentionRow, Table
from benchmarks.timer import MODES
from soft_vit.text_tables import markdown_table


def report(table: Table) -> str:
    """Return a Markdown page of all figures."""
    rows = table.rows
    # The shipped table was measured by an earlier name of the command.
    command = table.command.replace("python tools/atlas.py", "python -m benchmarks atlas")
    sections = [
        f"# The atlas of attentions\n\n`{command}`",
        f"{table.date}; {table.machine}. One image, one attention layer of width 64 with its projections, fp32, square "
        "maps. Times are medians over rounds, in turn with fused softmax attention; brackets hold the median "
        "ratio to it. The number of reduced tokens stays the same as the map grows: "
        f"{measured_with()}. Memory is the peak of live tensors beyond weights and input. "
        f"{count_unstable(rows)}",
        "## Crossovers\n\nThe number of tokens above which an attention takes less than fused softmax attention; "
        "brackets hold it by the quartiles of the ratios. `always`: at every measured N. `never`: not at the largest "
        f"measured N, with the ratio there.\n\n{crossover_table(rows)}",
    ]
    for head_dim in sorted({row.head_dim for row in rows}):
        for mode in MODES:
            own = [row for row in rows if (row.head_dim, row.mode) == (head_dim, mode)]
            if own:
                sections.append(f"## {mode.capitalize()}, heads of {head_dim}\n\n{figures_table(own)}")
    return "\n\n".join(sections) + "\n"


def count_unstable(rows: Sequence[AttentionRow]) -> str:
    """Return how many rows have the note `UNSTABLE`, in words."""
    timed = [row for row in rows if row.seconds is not None]
    unstable = sum(row.note == UNSTABLE for row in timed)
    return (
        f"{unstable} of {len(timed)} timed rows are unstable, with quartiles more than 10 % of the median apart, "
        "and have a star."
    )


def kinds_in_order(rows: Sequence[AttentionRow]) -> list[str]:
    """Return the kinds of rows: softmax, all others group by group, and `none`."""
    known = {row.kind for row in rows}
    grouped = (kind for kinds in GROUPS.values() for kind in kinds)
    return [kind for kind in ("softmax", *grouped, "none") if kind in known]


def crossover_table(rows: Sequence[AttentionRow]) -> str:
    """Return a row for each kind except softmax, with columns for each quantity and width of heads."""
    head_dims = sorted({row.head_dim for row in rows})
    found = {dim: crossings(rows, dim) for dim in head_dims}
    costs = {row.kind: row.cost for row in rows}
    lines = []
    for kind in kinds_in_order(rows)[1:]:
        cells = [crossing_cell(found[dim].get((kind, what))) for what in QUANTITIES for dim in head_dims]
        lines.append([f"`{kind}`", costs[kind], *cells])
    header = [f"{what}, heads of {dim}" for what in QUANTITIES for dim in head_dims]
    return markdown_table(["kind", "cost", *header], lines)


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


def figures_table(rows: Sequence[AttentionRow]) -> str:
    """Return milliseconds and MB by kind and number of tokens, of rows of one mode and one width of heads."""
    tokens = sorted({row.tokens for row in rows})
    by_case = {(row.kind, row.tokens): row for row in rows}
    lines = [
        [f"`{kind}`", *(figures_cell(by_case.get((kind, count)), rows) for count in tokens)]
        for kind in kinds_in_order(rows)
    ]
    return markdown_table(["kind", *(f"N = {count}" for count in tokens)], lines)


def figures_cell(row: AttentionRow | None, rows: Sequence[AttentionRow]) -> str:
    """Return a cell such as `3.1 ms (0.42)*` above `7.9 MB (1.20)`; or why it was not timed."""
    if row is None:
        return "not measured"
    lines = [] if row.note in ("", UNSTABLE) else [row.note]
    if row.seconds is not None:
        star = "\\*" if row.note == UNSTABLE else ""
        lines.append(f"{_three_digits(row.seconds * 1e3)} ms ({row.ratio:.2f}){star}")
    ratio = memory_ratio(row, rows)
    if row.megabytes is not None and ratio is not None:
        lines.append(f"{_three_digits(row.megabytes)} MB ({ratio:.2f})")
    return "<br>".join(lines)


def _three_digits(value: float) -> str:
    """Return a number such as 0.0312, 3.12 or 31,200."""
    return f"{value:.3g}" if value < 999.5 else f"{float(f'{value:.3g}'):,.0f}"
