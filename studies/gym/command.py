"""Compare attentions on the gym's tasks.

python -m studies gym --tasks all --kinds all --seeds 3 --jobs 2 --out gym

A stopped study continues where it stopped, and several studies can share a folder, one after another. Each run is a
file in OUT/runs. At the end, results.csv and results.md are written to OUT; --no-train writes them from the runs that
exist. At Ctrl-C or SIGTERM, the runs that have begun are finished and saved.

--into studies/results/gym/results.csv adds the runs to those that the pages show, which python -m docs.generate writes.
"""

import shlex
from collections.abc import Sequence
from datetime import date
from itertools import product
from pathlib import Path

from soft_vit.cli import ArgumentParser
from soft_vit.layers import ATTENTIONS
from soft_vit.probe.cost import machine_description
from soft_vit.weights.files import write_atomically
from studies.gym import TASKS
from studies.gym.report import merged_csv, read_cells, report, results_csv
from studies.gym.study import STEPS, Study, parse_kind
from studies.gym.training import Run


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__, prog="python -m studies gym")
    add = parser.add_argument
    add("--tasks", nargs="+", default=["all"], choices=["all", *TASKS], metavar="TASK", help=", ".join(TASKS))
    add("--kinds", nargs="+", default=["all"], metavar="KIND", help="attentions with options, as soft:sampling=avg")
    add("--seeds", type=int, default=3, help="runs per task and attention")
    add("--num-tokens", type=int, nargs="+", metavar="N", help="(default: the task's own)")
    add("--no-train", action="store_true", help="only report the runs that exist")
    add("--jobs", type=int, default=1, help="single-threaded processes")
    add("--out", type=Path, default=Path("gym"), help="folder of the runs (default: gym)")
    add("--into", type=Path, metavar="FILE", help="also add the runs to this table of runs")
    args = parser.parse_args(argv)
    tasks = list(TASKS) if "all" in args.tasks else args.tasks
    kinds = [parse_kind(kind) for kind in (ATTENTIONS if "all" in args.kinds else args.kinds)]
    sizes = [{"num_tokens": size} for size in args.num_tokens or ()] or [{}]
    cells = [
        Run(task, kind, 0, 0.0, STEPS[task], task_options=size, attention_options=options)
        for task, size, (kind, options) in product(tasks, sizes, kinds)
    ]
    study = Study(args.out, cells, args.seeds)
    # The report names the command that measured, which is the one without --no-train.
    command = shlex.join(["python", "-m", "studies", "gym", *(word for word in argv if word != "--no-train")])
    if not args.no_train:
        study.train(args.jobs)
    write_report(study, command)
    print(f"Written: {args.out}/results.md and results.csv.")
    if args.into is not None:
        write_atomically(args.into, merged_csv(args.into.read_text(), results_csv(study)).encode())


def write_report(study: Study, command: str) -> None:
    """Write results.csv and results.md of the runs that exist."""
    table = results_csv(study)
    head = f"# The gym's results\n{machine_description()}; {date.today()}; `{command}`."
    write_atomically(study.out / "results.csv", table.encode())
    write_atomically(study.out / "results.md", report(read_cells(table), head).encode())
