"""Compare attentions on the gym's tasks.

python -m studies gym --tasks all --kinds all --seeds 3 --jobs 2 --out gym

A stopped study continues where it was, and can share its folder with others. OUT/runs gets a file for each run, and OUT
at the end results.csv, results.md and pictures; --no-train makes them from the runs that exist.
"""

import argparse
import shlex
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import get_args

from benchmarks.timer import machine_description
from soft_vit.layers import ATTENTIONS
from soft_vit.weights.files import write_atomically
from studies.gym import TASKS
from studies.gym.report import (
    plot_against,
    plot_scores,
    plot_training,
    report,
    results_csv,
    scores,
    single_token_ceilings,
)
from studies.gym.study import Cell, Study, parse_kind
from studies.gym.training import ModelName


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        "python -m studies gym", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tasks", nargs="+", default=["all"], choices=["all", *TASKS], metavar="TASK", help=", ".join(TASKS)
    )
    parser.add_argument(
        "--kinds", nargs="+", default=["all"], metavar="KIND", help="attentions, such as soft:sampling=avg"
    )
    parser.add_argument("--model", choices=get_args(ModelName), default="isotropic", help="(default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each task and kind (default: %(default)s)")
    parser.add_argument("--num-tokens", type=int, nargs="+", metavar="N", help="(default: the task's own)")
    parser.add_argument("--difficulty", type=number, nargs="+", help="(default: the task's own)")
    parser.add_argument("--steps", type=int, help="steps of training (default: the task's own)")
    parser.add_argument("--no-train", action="store_true", help="report the runs that exist")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each of one thread (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("gym"), help="(default: %(default)s)")
    args = parser.parse_args(argv)
    tasks = list(TASKS) if "all" in args.tasks else args.tasks
    kinds = [parse_kind(kind) for kind in (ATTENTIONS if "all" in args.kinds else args.kinds)]
    sizes = [{"num_tokens": size} for size in args.num_tokens or ()] or [{}]
    levels = [{"difficulty": level} for level in args.difficulty or ()] or [{}]
    cells = [
        Cell(task, kind, args.model, args.steps, size | level, options)
        for task in tasks
        for size in sizes
        for level in levels
        for kind, options in kinds
    ]
    study = Study(args.out, cells, args.seeds)
    # --no-train reports what a command without it has measured.
    command = shlex.join(["python", "-m", "studies", "gym", *(word for word in argv if word != "--no-train")])
    if not args.no_train:
        study.train(args.jobs)
    write_report(study, command)
    print(f"Written: {args.out}/results.md, results.csv and pictures.")


def number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def write_report(study: Study, command: str) -> None:
    """Write results.csv, results.md and pictures of the runs that exist."""
    found, ceilings = scores(study), single_token_ceilings(study)
    head = f"{machine_description()}; {date.today()}; `{command}`."
    write_atomically(study.out / "results.csv", results_csv(study).encode())
    write_atomically(study.out / "results.md", report(study, ceilings, head).encode())
    if found:
        plot_scores(found, ceilings, study.out / "scores.png")
        plot_training(study, study.out / "training.png")
        for option in ("num_tokens", "difficulty"):
            if len({cell.task_options.get(option) for cell in study.cells}) > 1:
                plot_against(study, option, study.out / f"{option}.png")
