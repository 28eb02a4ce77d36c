"""Runs that continue where they stopped: a JSON file for each result, with its command, machine and CPU time."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from soft_vit.probe.cost import machine_description
from soft_vit.weights.files import write_atomically

RESULTS = Path(__file__).parents[1] / "results" / "real"
EVERY = 30.0
"""Seconds after which a clock notes its time."""


@contextmanager
def cpu_clock(folder: Path) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the CPU minutes that runs with this folder took, those that were stopped too."""
    path, began = folder / "cpu_minutes", time.process_time()
    before = float(path.read_text()) if path.exists() else 0.0

    def minutes() -> float:
        return before + (time.process_time() - began) / 60

    def note() -> None:
        write_atomically(path, f"{minutes()}".encode())

    folder.mkdir(parents=True, exist_ok=True)
    ended = threading.Event()

    def note_often() -> None:
        # A run may be killed without notice.
        while not ended.wait(EVERY):
            note()

    thread = threading.Thread(target=note_often, daemon=True)
    thread.start()
    try:
        yield minutes
    finally:
        ended.set()
        thread.join()
        note()


def save(part: str, name: str, result: dict[str, Any], command: str, out: Path = RESULTS) -> None:
    """Write the result of a run, with what it took to get it."""
    path = out / part / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"command": command, "machine": machine_description(), "date": time.strftime("%Y-%m-%d")}
    write_atomically(path, (json.dumps(head | result, indent=1) + "\n").encode())


def load(part: str, out: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Return the results of a part by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((out / part).glob("*.json"))}
