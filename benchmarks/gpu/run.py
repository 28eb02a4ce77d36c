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
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from datetime import date
from itertools import groupby
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


class Runner:
    """Runs parts, each a process group of its own, until a deadline; root is a clone of the repository.

    options follow the arguments of measurements, environment is added to that of this process.
    """

    def __init__(self, root: Path, seconds: float, options: Sequence[str], environment: Mapping[str, str]) -> None:
        self.root, self.options, self.environment = root, options, {**os.environ, **environment}
        self.deadline = time.monotonic() + seconds
        self.running: set[subprocess.Popen] = set()

    def run(self, part: Part) -> tuple[Outcome | None, str]:
        """Return how a part ended, None if no time was left to begin it, and what it printed."""
        began = time.monotonic()
        if began >= self.deadline:
            return None, ""
        with tempfile.TemporaryDirectory() as folder:
            timings, output = Path(folder, "timings.json"), Path(folder, "output")
            arguments = part.arguments if part.of_tests else (*part.arguments, str(timings), *self.options)
            how = dict(cwd=self.root, env=self.environment, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)
            with output.open("wb") as stdout:
                process = subprocess.Popen([sys.executable, *arguments], stdout=stdout, start_new_session=True, **how)
            self.running.add(process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(min(part.seconds, self.deadline - began))
            state = OUT_OF_TIME if process.returncode is None else FAILED if process.returncode else DONE
            self.end(process)
            printed = output.read_text(errors="replace")
            outcome = Outcome(state, round(time.monotonic() - began, 1))
            if state == DONE and timings.is_file():
                outcome.timings = [Timing(**timing) for timing in json.loads(timings.read_text())]
        if state != DONE:
            outcome.tail = "\n".join(printed.splitlines()[-TAIL:])
        if state != DONE or part.of_tests:
            # The last line of tests counts them.
            outcome.last = next((line.strip("= ") for line in reversed(printed.splitlines()) if line.strip()), "")
        return outcome, printed

    def end(self, process: subprocess.Popen) -> None:
        """End a process and whatever it started."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process that waits for a GPU which has stopped cannot be killed, and the others need not wait for it.
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        self.running.discard(process)


def run_parts(
    parts: Sequence[Part],
    out: Path,
    machine: str,
    report: Callable[[Mapping[str, Outcome]], None],
    runner: Runner,
) -> dict[str, Outcome]:
    """Run the parts that are not done, and return how each ended; a part that could not begin has no outcome.

    Parts that may run together do, half as many as there are cores, the others one by one. After each part out keeps
    the outcomes, so that another call continues where this one ended, and report is called.
    """
    outcomes = load_outcomes(out, machine)
    waiting = [part for part in parts if part.name not in outcomes or outcomes[part.name].state != DONE]
    workers = max(1, (os.cpu_count() or 1) // 2)
    try:
        for together, group in groupby(waiting, key=lambda part: part.together):
            with ThreadPoolExecutor(workers if together else 1) as pool:
                futures = {pool.submit(runner.run, part): part for part in group}
                for future in as_completed(futures):
                    part, (outcome, printed) = futures[future], future.result()
                    if outcome is None:
                        continue
                    outcomes[part.name] = outcome
                    ended = f"{part.name}: {outcome.state} after {outcome.seconds:.0f} s. {outcome.last}"
                    print(ended.rstrip(), flush=True)
                    with (out / LOG).open("a") as log:
                        log.write(f"===== {part.name}: {outcome.state}\n{printed}\n")
                    save_outcomes(out, machine, outcomes)
                    report(outcomes)
    except BaseException:
        # Threads end with their processes, and begin no others.
        runner.deadline = 0.0
        for process in list(runner.running):
            runner.end(process)
        raise
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

    seconds, environment = (DRY_SECONDS, INTERPRETED) if args.dry else (SECONDS, {})
    outcomes = run_parts(parts, out, here, report, Runner(Path(__file__).parents[2], seconds, options, environment))
    report(outcomes)
    print(f"Written: report.md and report.csv in {out}.")
    if undone := [part.name for part in parts if part.name not in outcomes or outcomes[part.name].state != DONE]:
        raise ValueError(f"{', '.join(undone)}: not done; the report tells why, and the same command tries again.")
