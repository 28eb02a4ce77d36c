"""How the parts of a report ended, kept in its folder, so that another run continues."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.timer import Timing
from soft_vit.weights.files import write_atomically

DONE, FAILED, OUT_OF_TIME = "done", "failed", "out of time"
STATE = "parts.json"


@dataclass
class Outcome:
    """How a part ended; last: the last line of tests or of what is not done, tail: the last lines of the latter."""

    state: str
    seconds: float
    last: str = ""
    tail: str = ""
    timings: list[Timing] = field(default_factory=list)


def load_outcomes(out: Path, machine: str) -> dict[str, Outcome]:
    """Return what the folder holds already. ValueError where it was measured elsewhere."""
    if not (out / STATE).is_file():
        return {}
    state = json.loads((out / STATE).read_text())
    if state["machine"] != machine:
        raise ValueError(f"{out} must hold a report of {machine}, got {state['machine']}; give another folder.")
    return {
        name: Outcome(**outcome | {"timings": [Timing(**timing) for timing in outcome["timings"]]})
        for name, outcome in state["parts"].items()
    }


def save_outcomes(out: Path, machine: str, outcomes: Mapping[str, Outcome]) -> None:
    """Write what `load_outcomes` reads."""
    state = {"machine": machine, "parts": {name: asdict(outcome) for name, outcome in outcomes.items()}}
    write_atomically(out / STATE, json.dumps(state, indent=1).encode())
