"""The logs of training runs, JSON by the line as MMEngine's LocalVisBackend writes it.

A run is a series of logs: each start, and each resumption, has a folder of its own in the work directory. Lines of
training have the iteration as their step, lines of validation the epoch.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Run", "Series", "read_run", "read_runs"]

LOG_FILE = "scalars.json"
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
