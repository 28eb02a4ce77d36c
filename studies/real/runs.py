"""Runs that continue where they stopped: a JSON file for each result, with its command, machine and CPU time."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from soft_vit.probe.cost import machine_description
from soft_vit.weights.files import write_atomically

RESULTS = Path(__file__).parents[1] / "results" / "real"
SEEDS = (0, 1, 2)
EVERY = 30.0
"""Seconds after which a clock notes its time."""


def _cpu_seconds() -> float:
    """Return the time of this process, and of those that it started and that have ended."""
    return time.process_time() + sum(os.times()[2:4])


@contextmanager
def cpu_clock(folder: Path) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the CPU minutes that runs with this folder took, those that were stopped too."""
    path, began = folder / "cpu_minutes", _cpu_seconds()
    before = float(path.read_text()) if path.exists() else 0.0
    ended = threading.Event()

    def minutes() -> float:
        return before + (_cpu_seconds() - began) / 60

    def note() -> None:
        # A run may be killed without notice.
        while not ended.wait(EVERY):
            write_atomically(path, f"{minutes()}".encode())

    thread = threading.Thread(target=note, daemon=True)
    thread.start()
    try:
        yield minutes
    finally:
        ended.set()
        thread.join()
        write_atomically(path, f"{minutes()}".encode())


def save(part: str, name: str, result: dict[str, Any], command: str, out: Path = RESULTS) -> None:
    """Write the result of a run, with what it took to get it."""
    head = {"command": command, "machine": machine_description(), "date": time.strftime("%Y-%m-%d")}
    write_atomically(out / part / f"{name}.json", (json.dumps(head | result, indent=1) + "\n").encode())


def load(part: str, out: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Return the results of a part by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((out / part).glob("*.json"))}
