"""Curves of training runs, from the logs `scalars.json` with one JSON object per line.

Every start of a run, and every resumption, writes a log into a folder of its own in the work directory.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

DEFAULT_KEYS = ("loss", "accuracy/top1", "lr", "grad_norm")
# Keys for the position of a line in the run.
POSITION_KEYS = {"mode", "step", "iter", "epoch"}

# Unit of the steps, "iteration" or "epoch"; the steps; the values.
Series = tuple[str, list[int], list[float]]


def read_run(path: str | Path) -> dict[str, Series]:
    """Return the series of a run by key, from its work directory or from one log.

    A key of both training and validation is `val/<key>` for validation.

    If a log begins before the previous one ends, the run was resumed from a checkpoint between the two, and the later
    log counts. Raises FileNotFoundError for a missing log, and ValueError for a file that is empty or not a log.
    """
    path = Path(path)
    # The folders of starts are named by their time.
    if not (logs := [path] if path.is_file() else sorted(path.glob("*/vis_data/scalars.json"))):
        raise FileNotFoundError(f"The run must be a work directory with logs or a scalars.json, got {path}.")
    read = [_read_log(log) for log in logs]
    # Runs that count in iterations log no epoch next to the loss. What is measured between two lines has one.
    by_iteration = any(_is_training(x) and "loss" in x and "epoch" not in x for log in read for x in log)
    lines: list[dict] = []
    for later in read:
        lines = _before(lines, later, by_iteration) + later
    if not lines:
        raise ValueError(f"The log of a run must not be empty, got {path}.")
    trained = {key for line in lines if _is_training(line) for key in line}
    series: dict[str, Series] = {}
    for line in lines:
        training = _is_training(line)
        unit = "iteration" if training or by_iteration else "epoch"
        for key in line.keys() - POSITION_KEYS:
            if line[key] is None or isinstance(line[key], int | float):
                name = f"val/{key}" if not training and key in trained else key
                _, steps, values = series.setdefault(name, (unit, [], []))
                steps.append(line["step"])
                values.append(math.nan if line[key] is None else line[key])
    return series


def plot_curves(runs: Mapping[str, Mapping[str, Series]], path: str | Path, keys: Sequence[str] = ()) -> None:
    """Draw a panel per key with a curve per run, and write the picture. keys: by default the `DEFAULT_KEYS` that exist.

    runs: what `read_run` returns, by name. Raises ValueError for a key that no run has.
    """
    known = sorted({key for run in runs.values() for key in run})
    keys = list(keys) or [key for key in DEFAULT_KEYS if key in known] or known
    if missing := set(keys) - set(known):
        raise ValueError(f"keys must be logged by a run, got {min(missing)!r}; choose from {', '.join(known)}.")
    from matplotlib.figure import Figure

    columns = min(len(keys), 2)
    rows = math.ceil(len(keys) / columns)
    figure = Figure(figsize=(6 * columns, 3.6 * rows + 0.4), layout="constrained")
    curves = {}
    for place, key in enumerate(keys, 1):
        axes = figure.add_subplot(rows, columns, place, title=key)
        axes.grid(alpha=0.3)
        for index, (name, run) in enumerate(runs.items()):
            if key in run:
                _, steps, values = run[key]
                # Mark the points of a short curve.
                marker = "o" if len(steps) <= 30 else ""
                (curves[name],) = axes.plot(steps, values, f"C{index}", marker=marker, markersize=3)
                axes.set_xlabel(" or ".join(sorted({run[key][0] for run in runs.values() if key in run})))
                axes.locator_params(axis="x", integer=True)
    figure.legend(curves.values(), curves.keys(), loc="outside upper center", ncols=2 * columns, frameon=False)
    figure.savefig(path, dpi=150)


def _read_log(path: Path) -> list[dict]:
    """Return the lines of a log, without an incomplete last one of a killed run."""
    texts = path.read_text(errors="replace").splitlines()
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
            lines.append({**line, "step": int(line["step"])})
        except (ValueError, TypeError, KeyError) as error:
            if number < len(texts) or number == 1:
                raise ValueError(f"Every line of {path} must be JSON with a step, got line {number}.") from error
    return lines


def _is_training(line: dict) -> bool:
    # Logs of MMEngine lack the mode; only lines of training have an iteration.
    return line.get("mode", "train" if "iter" in line else "val") == "train"


def _before(earlier: list[dict], later: list[dict], by_iteration: bool) -> list[dict]:
    """Return the earlier lines that a resumed run, logged in `later`, did not repeat."""
    iteration = min((line["step"] for line in later if _is_training(line)), default=math.inf)
    # An epoch's validation follows its training.
    epoch = min((x["step"] if by_iteration else x.get("epoch", x["step"]) for x in later), default=math.inf)
    return [line for line in earlier if line["step"] < (iteration if _is_training(line) else epoch)]
