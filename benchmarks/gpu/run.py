"""Runs the parts, each in a process of its own, and keeps what they found in a folder."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.gpu.parts import Figure, Part
from soft_vit.weights.files import write_atomically

DONE, FAILED, OUT_OF_TIME = "done", "failed", "out of time"
STATE = "parts.json"
LOG = "log.txt"
# Lines of the output of a part that did not end well.
TAIL = 40


@dataclass
class Outcome:
    """How a part ended; last: the last line of tests or of what is not done, tail: the last lines of the latter."""

    state: str
    seconds: float
    last: str = ""
    tail: str = ""
    figures: list[Figure] = field(default_factory=list)


def load_outcomes(out: Path, machine: str) -> dict[str, Outcome]:
    """What the folder holds already. ValueError where it was measured elsewhere."""
    if not (out / STATE).is_file():
        return {}
    state = json.loads((out / STATE).read_text())
    if state["machine"] != machine:
        raise ValueError(f"{out} holds the report of {state['machine']}, not of {machine}; give another folder.")
    return {
        name: Outcome(**outcome | {"figures": [Figure(**figure) for figure in outcome["figures"]]})
        for name, outcome in state["parts"].items()
    }


def save_outcomes(out: Path, machine: str, outcomes: Mapping[str, Outcome]) -> None:
    """Write what `load_outcomes` reads."""
    state = {"machine": machine, "parts": {name: asdict(outcome) for name, outcome in outcomes.items()}}
    write_atomically(out / STATE, json.dumps(state, indent=1).encode())


class Running:
    """A part in a process group of its own, so that what it started ends with it."""

    def __init__(
        self, part: Part, seconds: float, options: Sequence[str], environment: Mapping[str, str], root: Path
    ) -> None:
        self.part, self.seconds = part, seconds
        self.folder = tempfile.TemporaryDirectory()
        self.figures, self.output = Path(self.folder.name, "figures.json"), Path(self.folder.name, "output")
        arguments = part.arguments if part.of_tests else (*part.arguments, str(self.figures), *options)
        self.began = time.monotonic()
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=root,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def is_over(self) -> bool:
        """Whether the process has ended or its time is up."""
        return self.process.poll() is not None or time.monotonic() - self.began > self.seconds

    def end(self) -> Outcome:
        """End the process if it has not, and whatever it started, and say how it ended."""
        late = self.process.poll() is None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        # A process that waits for a GPU which has stopped cannot be killed, and the others need not wait for it.
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        state = OUT_OF_TIME if late else FAILED if self.process.returncode else DONE
        lines = self.output.read_text(errors="replace").splitlines()
        seconds = time.monotonic() - self.began
        # That of tests counts them.
        said = [line.strip("= ") for line in lines if line.strip()] if self.part.of_tests or state != DONE else []
        outcome = Outcome(state, round(seconds, 1), said[-1] if said else "")
        if state == DONE and self.figures.is_file():
            outcome.figures = [Figure(**figure) for figure in json.loads(self.figures.read_text())]
        elif state != DONE:
            outcome.tail = "\n".join(lines[-TAIL:])
        return outcome


def run_parts(
    parts: Sequence[Part],
    out: Path,
    machine: str,
    report: Callable[[Mapping[str, Outcome]], None],
    *,
    root: Path,
    seconds: float,
    options: Sequence[str],
    environment: Mapping[str, str],
) -> dict[str, Outcome]:
    """Run the parts that are not done, for at most that many seconds together, and return how each ended.

    Parts that may run together do, half as many as there are cores, and after them the others one by one. After each
    part out keeps the outcomes, so that another call goes on where this one ended, and report is called; a part that
    could not begin has none. root: a clone of the repository. options follow the arguments of measurements.
    """
    outcomes = load_outcomes(out, machine)
    deadline = time.monotonic() + seconds
    waiting = [part for part in parts if part.name not in outcomes or outcomes[part.name].state != DONE]
    running: list[Running] = []
    try:
        while running or (waiting and time.monotonic() < deadline):
            for one in [one for one in running if one.is_over()]:
                running.remove(one)
                outcome = outcomes[one.part.name] = one.end()
                ended = f"{one.part.name}: {outcome.state} after {outcome.seconds:.0f} s. {outcome.last}"
                print(ended.rstrip(), flush=True)
                with (out / LOG).open("a") as log:
                    log.write(f"===== {one.part.name}: {outcome.state}\n{one.output.read_text(errors='replace')}\n")
                one.folder.cleanup()
                save_outcomes(out, machine, outcomes)
                report(outcomes)
            left = deadline - time.monotonic()
            most = max(1, (os.cpu_count() or 1) // 2) if all(one.part.together for one in running) else 1
            if waiting and left > 0 and (not running or (waiting[0].together and len(running) < most)):
                part = waiting.pop(0)
                outcomes.pop(part.name, None)
                running.append(Running(part, min(part.seconds, left), options, environment, root))
            else:
                time.sleep(0.05)
    finally:
        for one in running:
            one.end()
            one.folder.cleanup()
    return outcomes
