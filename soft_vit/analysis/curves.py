"""Curves of training runs from their logs, JSON by the line as MMEngine's LocalVisBackend writes it.

A run is a series of logs: each start, and each resumption, has a folder of its own in the work directory. Lines of
training have the iteration as their step, lines of validation the epoch.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from soft_vit.analysis.figures import new_figure
from soft_vit.text_tables import csv_table

__all__ = [
    "DEFAULT_KEYS",
    "Run",
    "Series",
    "choose_keys",
    "curves_csv",
    "plot_curves",
    "read_run",
    "read_runs",
    "smoothed",
]

DEFAULT_KEYS = ("loss", "accuracy/top1", "lr", "grad_norm")
LOG_FILE = "scalars.json"
# Drawn on a logarithmic axis where they spread over more than a power of ten.
LOGARITHMIC = ("grad_norm", "newton_residual")
# Keys of a line that say where it belongs; they are no curves.
PLACES = {"mode", "step", "iter", "epoch"}


@dataclass
class Series:
    """One quantity: axis says what `steps` count, iterations or epochs; values may be NaN."""

    axis: str
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass
class Run:
    """A run's series by key; one that training and validation both have is `val/<key>` for the validation."""

    name: str
    series: dict[str, Series] = field(default_factory=dict)


def read_runs(paths: Sequence[str | Path], names: Sequence[str] | None = None) -> list[Run]:
    """The runs in work directories or log files, named by `names` or by what tells their paths apart.

    Raises what `read_run` raises, and ValueError for another number of names than of paths.
    """
    if names is not None and len(names) != len(paths):
        raise ValueError(f"There are {len(paths)} runs and {len(names)} names; give one name for each.")
    names = names or _distinct_names([Path(path) for path in paths])
    return [read_run(path, name) for path, name in zip(paths, names, strict=True)]


def read_run(path: str | Path, name: str | None = None) -> Run:
    """The run in a work directory, in the folder of one start, or in one log file.

    Where a later log begins before an earlier one ends, the run went on from a checkpoint in between: the later log
    holds. Raises FileNotFoundError where there is no log, ValueError for a file that is none or is empty.
    """
    path = Path(path)
    lines: list[dict] = []
    for log in _logs(path):
        later = _read_log(log)
        lines = _before(lines, later) + later
    if not lines:
        raise ValueError(f"The log in {path} is empty; wait for the first line, or give another run.")
    return Run(name or path.resolve().name, _series(lines))


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as tell all of them apart."""
    parts = []
    for path in paths:
        path = path.resolve()
        if path.is_file():
            path = path.parent
        parts.append((path.parent if path.name == "vis_data" else path).parts)
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(own[-count:]) for own in parts]
        if len(set(names)) == len(names):
            break
    return names


def _logs(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    # Folders of starts are named by their time.
    for pattern in (LOG_FILE, f"vis_data/{LOG_FILE}", f"*/vis_data/{LOG_FILE}"):
        if found := sorted(path.glob(pattern)):
            return found
    raise FileNotFoundError(f"There is no log in {path}; give the work directory of a run, or its {LOG_FILE}.")


def _read_log(path: Path) -> list[dict]:
    """The lines of a log. The last one may be cut off: a run that was killed was perhaps writing it."""
    texts = path.read_text(errors="replace").splitlines()
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
        elif number < len(texts) or number == 1:
            raise ValueError(f"Line {number} of {path} is not one of a log; give the {LOG_FILE} of a run.")
    return lines


def _is_training(line: dict) -> bool:
    # MMEngine notes the iteration in lines of training alone.
    return line.get("mode", "train" if "iter" in line else "val") == "train"


def _before(earlier: list[dict], later: list[dict]) -> list[dict]:
    """Lines that still hold after a run has gone on, or begun again, as in `later`."""
    iteration = min((line["step"] for line in later if _is_training(line)), default=math.inf)
    # The validation of the epoch that the later log begins in comes after it.
    epochs = (line.get("epoch", math.inf) if _is_training(line) else line["step"] for line in later)
    epoch = min(epochs, default=math.inf)
    return [line for line in earlier if line["step"] < (iteration if _is_training(line) else epoch)]


def _series(lines: Sequence[dict]) -> dict[str, Series]:
    trained = {key for line in lines if _is_training(line) for key in line}
    series: dict[str, Series] = {}
    for line in lines:
        training = _is_training(line)
        for key, value in line.items():
            if key in PLACES or not (value is None or isinstance(value, (int, float))):
                continue
            key = f"val/{key}" if not training and key in trained else key
            own = series.setdefault(key, Series("iteration" if training else "epoch"))
            own.steps.append(line["step"])
            own.values.append(math.nan if value is None else float(value))
    return series


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
    figure = new_figure(figsize=(6 * columns, 3.6 * rows))
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
