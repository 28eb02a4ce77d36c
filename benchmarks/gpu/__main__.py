"""Test and measure the package on this machine's GPUs: a page, a table and a log in a folder, within ten minutes.

benchmarks/gpu_report.sh work_dirs/gpu
benchmarks/gpu_report.sh work_dirs/gpu_dry --dry
"""

import argparse
import datetime
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.gpu.page import page
from benchmarks.gpu.parts import DRY, FULL, plan
from benchmarks.gpu.run import DONE, Outcome, run_parts
from benchmarks.timer import machine_description
from soft_vit.cli import command_line
from soft_vit.ops.soft.triton.support import interpreter_unavailable_reason
from soft_vit.text_tables import rows_as_csv
from soft_vit.weights.files import require_place, write_atomically

# What remains of ten minutes is for the first import and for the page. A CPU may be busy.
SECONDS, DRY_SECONDS = 570, 3600
INTERPRETED = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the report; parts that are done stay done")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on a CPU, kernels in Triton's interpreter")
    return parser


def machine(dry: bool) -> str:
    """What the report is of. ValueError without a GPU, or where a dry run has no interpreter."""
    if dry and (reason := interpreter_unavailable_reason()):
        raise ValueError(f"The dry run {reason}; the run on a GPU does not.")
    if not dry and not torch.cuda.is_available():
        raise ValueError("torch sees no NVIDIA GPU here; run this on a machine with one, or try it with --dry.")
    import triton

    words = f"{machine_description('cpu' if dry else 'cuda')}, triton {triton.__version__}, CUDA {torch.version.cuda}"
    return f"{words}; dry run, whose numbers say nothing" if dry else f"{torch.cuda.device_count()} x {words}"


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    out, sizes, parts, here = args.out, DRY if args.dry else FULL, plan(args.dry), machine(args.dry)
    require_place(out / "report.md")
    root, options, seconds = Path(__file__).parents[2], ["--dry"] * args.dry, DRY_SECONDS if args.dry else SECONDS
    environment = INTERPRETED if args.dry else {}
    # As Ctrl-C does, so that no part outlives this, nor a terminal that is closed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    today, command = datetime.date.today().isoformat(), " ".join(["benchmarks/gpu_report.sh", "OUT", *options])

    def report(outcomes: Mapping[str, Outcome]) -> None:
        figures = [figure for outcome in outcomes.values() for figure in outcome.figures]
        write_atomically(out / "report.csv", rows_as_csv(figures, date=today, machine=here).encode())
        write_atomically(out / "report.md", page(f"{today}; {here}", command, parts, outcomes, sizes).encode())

    outcomes = run_parts(parts, out, here, report, root=root, seconds=seconds, options=options, environment=environment)
    report(outcomes)
    print(f"{out / 'report.md'} and {out / 'report.csv'} are written.")
    if undone := [part.name for part in parts if part.name not in outcomes or outcomes[part.name].state != DONE]:
        raise ValueError(f"{', '.join(undone)}: not done; the report says why, and the same command tries again.")


if __name__ == "__main__":
    main()
