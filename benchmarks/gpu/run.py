"""Test and measure the package on this machine's GPUs: a page, a table and a log in a folder, within ten minutes.

benchmarks/gpu_report.sh work_dirs/gpu
benchmarks/gpu_report.sh work_dirs/gpu_dry --dry
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path

import torch

from benchmarks.gpu.outcome import DONE, FAILED, OUT_OF_TIME, Outcome, load_outcomes, save_outcomes
from benchmarks.gpu.page import csv_rows, operator_calls, page
from benchmarks.gpu.parts import DRY, FULL, Part, plan
from benchmarks.timer import Timing, machine_description
from soft_vit.ops.soft.triton.support import interpreter_unavailable_reason
from soft_vit.text_tables import csv_table
from soft_vit.weights.files import ensure_writable, write_atomically

LOG = "log.txt"
# Lines of the output of a part that did not end well.
TAIL = 40
# The rest of ten minutes is for the first import and for the page. A CPU may be busy.
SECONDS, DRY_SECONDS = 570, 3600
INTERPRETED = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


class Running:
    """A part in a process group of its own, so that what it started ends with it."""

    def __init__(
        self, part: Part, seconds: float, options: Sequence[str], environment: Mapping[str, str], root: Path
    ) -> None:
        self.part, self.seconds = part, seconds
        self.folder = tempfile.TemporaryDirectory()
        self.timings, self.output = Path(self.folder.name, "timings.json"), Path(self.folder.name, "output")
        arguments = part.arguments if part.of_tests else (*part.arguments, str(self.timings), *options)
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
        if state == DONE and self.timings.is_file():
            outcome.timings = [Timing(**timing) for timing in json.loads(self.timings.read_text())]
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


def machine(dry: bool) -> str:
    """Return what the report is of. ValueError without a GPU, or where a dry run has no interpreter."""
    if dry and (reason := interpreter_unavailable_reason()):
        raise ValueError(f"The dry run {reason}; the run on a GPU does not.")
    if not dry and not torch.cuda.is_available():
        raise ValueError("torch must see an NVIDIA GPU; run this on a machine with one, or try it with --dry.")
    import triton

    words = f"{machine_description('cpu' if dry else 'cuda')}, triton {triton.__version__}, CUDA {torch.version.cuda}"
    return f"{words}; dry run, whose numbers mean nothing" if dry else f"{torch.cuda.device_count()} x {words}"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(out=Path("work_dirs/gpu"))
    parser.add_argument("--dry", action="store_true", help="tiny sizes on a CPU, kernels in Triton's interpreter")


def run(args: argparse.Namespace) -> None:
    """Run the parts that the folder lacks; ValueError for those that do not end well."""
    out, sizes, parts, here = args.out, DRY if args.dry else FULL, plan(args.dry), machine(args.dry)
    ensure_writable(out / "report.md")
    options = ["--dry"] * args.dry
    # As Ctrl-C does, so that no part outlives this, nor a terminal that is closed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    today, command = date.today().isoformat(), " ".join(["benchmarks/gpu_report.sh", "OUT", *options])

    def report(outcomes: Mapping[str, Outcome]) -> None:
        timings = [timing for outcome in outcomes.values() for timing in outcome.timings]
        if rows := csv_rows(timings, operator_calls(outcomes.values(), sizes)):
            text = csv_table(["date", "machine", *rows[0]], [[today, here, *row.values()] for row in rows])
            write_atomically(out / "report.csv", text.encode())
        write_atomically(out / "report.md", page(f"{today}; {here}", command, parts, outcomes, sizes).encode())

    outcomes = run_parts(
        parts,
        out,
        here,
        report,
        root=Path(__file__).parents[2],
        seconds=DRY_SECONDS if args.dry else SECONDS,
        options=options,
        environment=INTERPRETED if args.dry else {},
    )
    report(outcomes)
    print(f"Written: report.md and report.csv in {out}.")
    if undone := [part.name for part in parts if part.name not in outcomes or outcomes[part.name].state != DONE]:
        raise ValueError(f"{', '.join(undone)}: not done; the report tells why, and the same command tries again.")
