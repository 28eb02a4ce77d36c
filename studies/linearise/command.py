"""Linearise frozen ViTs without labels or heads, and measure what they keep.

python -m studies linearise --tasks two_hop --kinds linear performer none --seeds 3 --out linearised

Teachers are trained once, in OUT_teachers. Each run that ends adds a line to OUT.jsonl, and a stopped command continues
where it stopped. OUT.md and OUT.csv are written at the end; --no-train writes them from the runs that exist.
"""

import json
import shlex
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.report import Report
from soft_vit.cli import ArgumentParser
from soft_vit.layers.vit_attention import check_options
from soft_vit.probe.cost import machine_description
from soft_vit.text_tables import markdown_table
from soft_vit.weights.files import write_atomically
from studies.figures import over_seeds
from studies.gym.study import parse_kind
from studies.linearise.students import Judge, Result, Run, linearise, load_teacher
from studies.linearise.tasks import TASKS

KINDS = ("linear", "performer", "focused", "soft_plus", "mala", "hydra", "ttt_glu", "none")
NORM, CONV = "key_norm=instance", "qk_conv=True"
VARIANTS = {"plain": ("", 0), "norm": (NORM, 0), "conv": (CONV, 0), "both": (f"{NORM},{CONV}", 0)}
VARIANTS |= {f"{keep} softmax": ("", keep) for keep in (1, 2, 4)}
"""Options of the attention type, and the number of blocks that keep softmax."""
# `ttt_glu` has both options built in, and the baseline lacks keys.
PLAIN_ALONE = ("ttt_glu", "none")

KIND_COLUMNS = {"after the swap": ("swap", 1), "after phase 1": ("phase1", 1), "at the end": ("accuracy", 1)}
KIND_COLUMNS |= {"k-NN agreement": ("agreement", 1), "cosine": ("cosine", 3), "CPU minutes": ("cpu_minutes", 2)}
BLOCK_COLUMNS = {"effective rank": ("rank", 0), "attention error after the swap": ("swap_error", 2)}
BLOCK_COLUMNS |= {"after phase 1": ("phase1_error", 2), "block error at the end": ("block_error", 2)}
"""The figures of columns, and their digits."""
MARGIN = 10
"""Points above chance that `none` may reach."""


def study_runs(args: Namespace) -> list[Run]:
    """Return the runs, seed by seed, so that a study that is stopped early has whole tables of fewer seeds.

    Raises ValueError for an unknown attention or option.
    """
    runs = []
    for seed, variant, task, kind in product(range(args.seeds), args.variants, args.tasks, args.kinds):
        options, keep = VARIANTS[variant]
        # A teacher of few blocks has no variant that keeps them all.
        if (not options or kind not in PLAIN_ALONE) and keep < TASKS[task].depth:
            name = f"{kind}:{options}" if options else kind
            runs.append(Run(task, name, keep, seed, *args.steps, rate2=args.rate or TASKS[task].rate))
            check_options(*parse_kind(name))
    return runs


def read_results(path: Path) -> dict[Run, Result]:
    """Return the results in a file of JSON lines, without a last line that a killed process left incomplete."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    values = [json.loads(line) for line in lines if line.endswith("\n")]
    return {Run(**value.pop("run")): value for value in values}


def _line(run: Run, result: Result) -> str:
    return json.dumps({"run": asdict(run), **result}) + "\n"


def train(runs: Iterable[Run], out: Path) -> None:
    """Do the runs that OUT.jsonl does not have, and add a line to it as each ends."""
    path, judges = Path(f"{out}.jsonl"), {}
    found = read_results(path)
    write_atomically(path, "".join(_line(*item) for item in found.items()).encode())
    for run in tqdm([run for run in runs if run not in found], unit="run"):
        if run.task not in judges:
            teacher = load_teacher(TASKS[run.task], Path(f"{out}_teachers") / f"{run.task}.safetensors")
            judges[run.task] = Judge(TASKS[run.task], teacher)
        line = _line(run, linearise(run, judges[run.task]))
        with path.open("a") as file:
            file.write(line)


def _share(group: Sequence[Result]) -> str:
    """Return the share of the teacher's accuracy, in percent."""
    return over_seeds([100 * result["accuracy"][0] / result["teacher"][0] for result in group])


def _cells(group: Sequence[Result], columns: Iterable[tuple[str, int]]) -> list[str]:
    """Return the means over seeds of figures, or of each entry of lists."""
    cells = []
    for name, digits in columns:
        values = np.mean([np.atleast_1d(result[name]) for result in group], axis=0)
        cells.append(" ".join(f"{value:.{digits}f}" for value in values))
    return cells


def report_task(task: str, results: dict[Run, Result]) -> str:
    """Return, in Markdown, whether the baseline `none` is at chance, and the tables of kinds, blocks and variants."""
    groups: dict[tuple[str, int], list[Result]] = {}
    for run, result in results.items():
        groups.setdefault((run.kind, run.keep), []).append(result)
    plain = {kind: group for (kind, keep), group in groups.items() if not keep and ":" not in kind}
    own = next(iter(results.values()))
    text = f"## {task}\n\nChance is {100 / TASKS[task].num_answers:.1f} %."
    if baseline := plain.get("none"):
        reached = fmean(result["accuracy"][0] for result in baseline)
        is_valid = reached <= 100 / TASKS[task].num_answers + MARGIN
        text += f" `none` has {reached:.1f} %: {'valid' if is_valid else 'not valid'}."
    kinds = [[kind, len(group), _share(group), *_cells(group, KIND_COLUMNS.values())] for kind, group in plain.items()]
    kinds.append(["*teacher*", *[""] * 4, *_cells([own], [("teacher", 1)]), *[""] * 3])
    blocks = [[kind, *_cells(group, BLOCK_COLUMNS.values())] for kind, group in plain.items()]
    blocks.append(["*teacher*", *_cells([own], [("teacher_rank", 0)]), *[""] * 3])
    variants = []
    for kind in dict.fromkeys(kind.partition(":")[0] for kind, _ in groups):
        found = [groups.get((f"{kind}:{options}" if options else kind, keep)) for options, keep in VARIANTS.values()]
        variants.append([kind, *(_share(group) if group else "" for group in found)])
    tables = [(["kind", "seeds", "of the teacher", *KIND_COLUMNS], kinds), (["kind", *BLOCK_COLUMNS], blocks)]
    if len(groups) > len(plain):
        tables.append((["kind", *VARIANTS], variants))
    return "\n\n".join([text, *(markdown_table(*table) for table in tables)])


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__, prog="python -m studies linearise")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), help="(default: all)")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), metavar="KIND", help=f"(default: {' '.join(KINDS)})")
    parser.add_argument("--variants", nargs="+", default=["plain"], choices=list(VARIANTS), help="(default: plain)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each kind")
    parser.add_argument("--steps", type=int, nargs=2, default=[400, 1200], metavar="N", help="by phase (400 1200)")
    parser.add_argument("--rate", type=float, help="highest one of the second phase (default: that of the task)")
    parser.add_argument("--no-train", action="store_true", help="only report the runs that exist")
    parser.add_argument("--out", type=Path, default=Path("linearised"), metavar="PREFIX", help="(default: %(default)s)")
    args = parser.parse_args(argv)
    runs = study_runs(args)
    if not args.no_train:
        torch.set_num_threads(1)
        train(runs, args.out)
    groups: dict[str, dict[Run, Result]] = {}
    for run, result in read_results(Path(f"{args.out}.jsonl")).items():
        if ([run.steps1, run.steps2], run.rate2) == (args.steps, args.rate or TASKS[run.task].rate):
            groups.setdefault(run.task, {})[run] = result
    command = shlex.join(["python", "-m", "studies", "linearise", *(word for word in argv if word != "--no-train")])
    parts = [report_task(task, results) for task, results in groups.items()]
    rows = [{**asdict(run), **found} for results in groups.values() for run, found in results.items()]
    case = "means over seeds (lowest to highest), in percent; lists are over sides of 1x, 2x, 4x, or over blocks"
    Report("Linearised without labels", case, parts, rows, {}).write(args.out, command, machine_description())
    print(f"Written: {args.out}.md and .csv.")
