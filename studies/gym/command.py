"""Compare attentions on the gym's tasks.

python -m studies gym --tasks all --kinds all --seeds 3 --jobs 2 --out gym

A stopped study continues where it stopped, and several studies can share a folder. Each run is a file in OUT/runs. At
the end, results.csv, results.md and plots are written to OUT; --no-train writes them from the runs that exist.
"""

import shlex
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from soft_vit.cli import ArgumentParser
from soft_vit.layers import ATTENTIONS
from soft_vit.probe.cost import machine_description
from soft_vit.weights.files import write_atomically
from studies.gym import TASKS
from studies.gym.report import plot_scores, plot_training, report, results_csv, scores, single_token_ceilings
from studies.gym.study import Cell, Study, parse_kind


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__, prog="python -m studies gym")
    parser.add_argument(
        "--tasks", nargs="+", default=["all"], choices=["all", *TASKS], metavar="TASK", help=", ".join(TASKS)
    )
    parser.add_argument(
        "--kinds", nargs="+", default=["all"], metavar="KIND", help="attentions with options, such as soft:sampling=avg"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs per task and attention")
    parser.add_argument("--num-tokens", type=int, nargs="+", metavar="N", help="(default: the task's own)")
    parser.add_argument("--no-train", action="store_true", help="only report the runs that exist")
    parser.add_argument("--jobs", type=int, default=1, help="single-threaded processes")
    parser.add_argument("--out", type=Path, default=Path("gym"), help="(default: %(default)s)")
    args = parser.parse_args(argv)
    tasks = list(TASKS) if "all" in args.tasks else args.tasks
    kinds = [parse_kind(kind) for kind in (ATTENTIONS if "all" in args.kinds else args.kinds)]
    sizes = [{"num_tokens": size} for size in args.num_tokens or ()] or [{}]
    cells = [Cell(task, kind, size, options) for task in tasks for size in sizes for kind, options in kinds]
    study = Study(args.out, cells, args.seeds)
    # The report names the command that measured, which is the one without --no-train.
    command = shlex.join(["python", "-m", "studies", "gym", *(word for word in argv if word != "--no-train")])
    if not args.no_train:
        study.train(args.jobs)
    write_report(study, command)
    print(f"Written: {args.out}/results.md, results.csv and plots.")


def write_report(study: Study, command: str) -> None:
    """Write results.csv, results.md and plots of the runs that exist."""
    found, ceilings = scores(study), single_token_ceilings(study)
    head = f"{machine_description()}; {date.today()}; `{command}`."
    write_atomically(study.out / "results.csv", results_csv(study).encode())
    write_atomically(study.out / "results.md", report(study, ceilings, head).encode())
    if found:
        plot_scores(found, ceilings, study.out / "scores.png")
        plot_training(study, study.out / "training.png")
