"""Pictures of the atlas: curves of each group of attentions, and where each crosses fused softmax attention."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.atlas.crossover import BASE, QUANTITIES, Crossing, Place, crossings
from benchmarks.atlas.groups import GROUPS
from benchmarks.atlas.table import AttentionRow

DPI = 100
# Style of a line, its width, and what it says in the pictures of crossings.
CROSSOVER_LEGEND = (
    ("C2o-", 1.6, "from here on, with quartiles"),
    ("C2<", 0, "at every N that was measured"),
    ("C3x", 0, "not at the largest N that was measured: so many times as much"),
)
Y_LABELS = {
    "inference": "inference: µs per token",
    "training": "forward and backward: µs per token",
    "memory": "peak memory of training: KB per token",
}


def plot_groups(rows: Sequence[AttentionRow], quantity: str, head_dim: int, path: Path) -> None:
    """Draw one quantity per token against N on logarithmic axes; a panel has one group in colour, softmax in black.

    The curve of an attention that is linear in N is level, and softmax rises. The axis leaves out curves that would
    flatten the others: `none`, far below them, and the upper part of the group of all pairs.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator

    curves = _curves(rows, quantity, head_dim)
    columns = (len(GROUPS) + 1) // 2
    figure = Figure(figsize=(4.2 * columns, 7.2), layout="constrained")
    panels = figure.subplots(2, columns, sharex=True, sharey=True).flatten()
    for unused in panels[len(GROUPS) :]:
        unused.remove()
        panels[columns - 1].tick_params(labelbottom=True)
    for axes, (group, kinds) in zip(panels, GROUPS.items(), strict=False):
        for kind, points in curves.items():
            style: dict[str, Any] = {"color": "0.88", "lw": 0.8, "zorder": 1}
            if kind == BASE or kind in kinds:
                colour, width = ("black", 2.6) if kind == BASE else (f"C{kinds.index(kind)}", 1.6)
                style = {"color": colour, "lw": width, "marker": "o", "ms": 3, "zorder": 3, "label": kind}
                # There are ten colours.
                style["ls"] = "--" if kind in kinds[10:] else "-"
            if kind != "none":
                axes.loglog(*zip(*points, strict=True), **style)
        axes.set_title(group, fontsize=11)
        axes.grid(alpha=0.2)
        axes.legend(fontsize=7.5, ncols=2)
    tokens = sorted({row.tokens for row in rows})
    flat = [amount for kind, points in curves.items() if kind not in GROUPS["all pairs"] for _, amount in points]
    # Empty for a mode that was not measured.
    if flat:
        # Legends lie above the curves.
        axes.set_ylim(top=4 * max(flat))
    axes.set_xticks(tokens, [f"{count}" for count in tokens], fontsize=8)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda amount, _: f"{amount:g}"))
    for axes in figure.axes:
        axes.minorticks_off()
        axes.tick_params(labelsize=8)
    figure.supxlabel("tokens N")
    figure.supylabel(Y_LABELS[quantity])
    figure.savefig(path, dpi=DPI)


def _curves(rows: Sequence[AttentionRow], quantity: str, head_dim: int) -> dict[str, list[tuple[float, float]]]:
    """Return points (tokens, quantity per token) of every kind."""
    mode, name, unit = ("training", "megabytes", 1024) if quantity == "memory" else (quantity, "seconds", 1e6)
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(rows, key=lambda row: row.tokens):
        amount = getattr(row, name)
        if (row.mode, row.head_dim) == (mode, head_dim) and amount:
            curves.setdefault(row.kind, []).append((row.tokens, amount * unit / row.tokens))
    return curves


def plot_crossovers(rows: Sequence[AttentionRow], head_dim: int, path: Path) -> None:
    """Draw for each attention and quantity the N above which it takes less than softmax, with quartiles."""
    from matplotlib.figure import Figure

    found = crossings(rows, head_dim)
    kinds = sorted({kind: None for kind, _ in found}, key=lambda x: _rank(found.get((x, "training"))), reverse=True)
    tokens = sorted({row.tokens for row in rows})
    figure = Figure(figsize=(10, 1.4 + 0.22 * len(kinds)), layout="constrained")
    for axes, quantity in zip(figure.subplots(1, 3, sharey=True), QUANTITIES, strict=True):
        axes.set_xscale("log")
        axes.set_xlim(tokens[0] / 1.6, tokens[-1] * 1.6)
        axes.set_xticks(tokens, [f"{count}" for count in tokens], fontsize=7)
        axes.minorticks_off()
        axes.grid(alpha=0.2)
        axes.set_title(f"{quantity}: less than softmax from N =", fontsize=9)
        for height, kind in enumerate(kinds):
            crossing = found.get((kind, quantity))
            if crossing is None:
                continue
            # "always" is drawn at the first number of tokens.
            low, place, high = (_position(p, tokens[0], crossing.last) for p in crossing[:3])
            if crossing.place == "never":
                axes.plot(crossing.last, height, "x", color="C3", ms=5)
                ratio = f"{crossing.last_ratio:.{1 if crossing.last_ratio < 10 else 0}f}x "
                axes.text(crossing.last / 1.2, height, ratio, color="C3", fontsize=7, ha="right", va="center")
            else:
                axes.plot([place, tokens[-1] * 1.6], [height, height], color="C2", lw=5, alpha=0.25)
                axes.plot([low, high], [height, height], color="C2", lw=1.6)
                axes.plot(place, height, "<" if crossing.place == "always" else "o", color="C2", ms=5)
    figure.axes[0].set_yticks(range(len(kinds)), kinds, fontsize=8)
    figure.axes[0].set_ylim(-0.8, len(kinds) - 0.2)
    for style, width, label in CROSSOVER_LEGEND:
        figure.axes[0].plot([], [], style, lw=width, label=label)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, dpi=DPI)


def _position(place: Place, first: float, last: float) -> float:
    return {"always": first, "never": last}[place] if isinstance(place, str) else place


def _rank(crossing: Crossing | None) -> float:
    return float("inf") if crossing is None or crossing.place == "never" else _position(crossing.place, 0.0, 0.0)
