"""Curves of training runs, from their logs."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from soft_vit.analysis.run_logs import Run, Series
from soft_vit.text_tables import csv_table

__all__ = ["DEFAULT_KEYS", "choose_keys", "curves_csv", "plot_curves", "smoothed"]

DEFAULT_KEYS = ("loss", "accuracy/top1", "lr", "grad_norm")
# Drawn on a logarithmic axis where they spread over more than a power of ten.
LOGARITHMIC = ("grad_norm", "newton_residual")


def smoothed(values: Sequence[float], window: int) -> np.ndarray:
    """Means over `window` values, as many before each as after it, which shifts nothing; 0 and 1 smooth nothing.

    Towards the ends the window shrinks. NaN is passed over, and stays where it is.
    """
    values = np.asarray(values, dtype=float)
    finite = np.isfinite(values)
    sums = np.concatenate([[0], np.where(finite, values, 0).cumsum()])
    counts = np.concatenate([[0], finite.cumsum()])
    index = np.arange(len(values))
    half = np.minimum(window // 2, np.minimum(index, index[::-1]))
    low, high = index - half, index + half + 1
    means = (sums[high] - sums[low]) / np.maximum(counts[high] - counts[low], 1)
    return np.where(finite, means, np.nan)


def choose_keys(runs: Sequence[Run], keys: Sequence[str] | None = None) -> list[str]:
    """The keys to draw: those given, or of DEFAULT_KEYS those that a run has.

    Raises ValueError, with the keys that there are, for one that no run has.
    """
    known = sorted({key for run in runs for key in run.series})
    chosen = list(keys) if keys else [key for key in DEFAULT_KEYS if key in known]
    missing = [key for key in chosen if key not in known]
    if missing or not chosen:
        what = repr(missing[0]) if missing else f"any of {', '.join(DEFAULT_KEYS)}"
        raise ValueError(f"No run has logged {what}; choose from {', '.join(known)}.")
    return chosen


def plot_curves(runs: Sequence[Run], path: str | Path, keys: Sequence[str] | None = None, smoothing: int = 0) -> None:
    """Draw a panel for each key with a curve for each run that has it, to a PNG, or whatever the suffix names.

    smoothing: the window of `smoothed` for what is logged during training; the values themselves stay visible behind.
    Raises ValueError for a negative one, and what `choose_keys` raises.
    """
    if smoothing < 0:
        raise ValueError(f"The smoothing is {smoothing}; choose 0 for none, or the number of values to average.")
    keys = choose_keys(runs, keys)
    columns = min(len(keys), math.ceil(math.sqrt(len(keys))))
    rows = math.ceil(len(keys) / columns)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * columns, 3.6 * rows))
    from matplotlib import colormaps
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes = figure.subplots(rows, columns, squeeze=False)
    palette = colormaps["tab10" if len(runs) <= 10 else "turbo"]
    colours = [palette(index if len(runs) <= 10 else index / (len(runs) - 1)) for index in range(len(runs))]
    handles = {}
    for axis, key in zip(axes.flat, keys, strict=False):
        for run, colour in zip(runs, colours, strict=True):
            if key in run.series:
                handles[run.name] = _draw_series(axis, run.series[key], colour, smoothing)
        axis.set_title(key, fontsize=11)
        axis.grid(alpha=0.3)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.spines[["top", "right"]].set_visible(False)
        shown = [value for run in runs if key in run.series for value in run.series[key].values if value > 0]
        if key.split("/")[0] in LOGARITHMIC and shown and max(shown) > 10 * min(shown):
            axis.set_yscale("log")
    for axis in list(axes.flat)[len(keys) :]:
        axis.set_visible(False)
    # One legend for all panels, in rows above them.
    legend_columns = min(len(handles), 2 * columns)
    legend_height = 0.3 * math.ceil(len(handles) / legend_columns)
    top = 1 - legend_height / figure.get_figheight()
    figure.tight_layout(rect=(0, 0, 1, top))
    figure.legend(
        handles.values(), handles.keys(), loc="upper center", ncols=legend_columns, frameon=False, fontsize=10
    )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _draw_series(axis: Any, series: Series, colour: Any, smoothing: int) -> Any:
    """Draw a curve, over its values where it is smoothed; returns its line, for the legend."""
    # A short curve, such as one of few epochs, shows where its points are.
    style = {"marker": "o", "markersize": 3.5} if len(series.steps) <= 30 else {}
    values = series.values
    if smoothing > 1 and series.axis == "iteration":
        axis.plot(series.steps, values, color=colour, alpha=0.25, linewidth=1)
        values = smoothed(values, smoothing)
    axis.set_xlabel(series.axis)
    return axis.plot(series.steps, values, color=colour, linewidth=1.6, **style)[0]


def curves_csv(runs: Sequence[Run], keys: Sequence[str] | None = None) -> str:
    """A line for each value: run, key, axis (iteration or epoch), step, value; empty where it is no number."""
    rows = [
        (run.name, key, series.axis, step, value if math.isfinite(value) else "")
        for key in choose_keys(runs, keys)
        for run in runs
        if (series := run.series.get(key)) is not None
        for step, value in zip(series.steps, series.values, strict=True)
    ]
    return csv_table(["run", "key", "axis", "step", "value"], rows)
