"""Train a config once with each attention, and compare the accuracies.

python -m studies attentions configs/demo/soft_pico_shapes.py
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Report
from benchmarks.timer import machine_description
from soft_vit.cli import ArgumentParser
from soft_vit.layers import ATTENTIONS
from soft_vit.models import model_name
from soft_vit.text_tables import error_cell, markdown_table
from soft_vit.weights.files import ensure_writable
from studies.runs import add_run_options, train_each


@dataclass
class AccuracyRow:
    """The run of one attention: top-1 of its last validation in percent, number of its images, minutes, or error."""

    attention: str
    model: str
    top1: float | None = None
    images: int = 0
    minutes: float = 0.0
    error: str = ""


def compare_accuracy(
    attentions: Sequence[str], config: str | Path, *, size: str = "pico", options: dict | None = None, **how: Any
) -> Iterator[list[AccuracyRow]]:
    """Train `config` with the pyramid of each attention, and yield all rows, in order, whenever a run ends.

    Runs are in the folders `work_dir/<model>`. how: other arguments of `train_each`. Raises ValueError for an unknown
    attention or size, and the errors of `train_each`.
    """
    rows = {name: AccuracyRow(attention, name) for attention in attentions for name in [model_name(attention, size)]}
    runs = {name: {**(options or {}), "model.model_name": name} for name in rows}
    for name, outcome in train_each(config, runs, **how):
        if isinstance(outcome, Exception):
            rows[name].error = error_cell(outcome)
        else:
            rows[name].top1, rows[name].images, rows[name].minutes = outcome
        yield list(rows.values())


def accuracy_table(rows: Sequence[AccuracyRow]) -> str:
    """Return a Markdown table. The cells of unfinished runs are empty."""

    def figures(row: AccuracyRow) -> tuple[str, str]:
        return (row.error, "") if row.top1 is None else (f"{row.top1:.1f}", f"{row.minutes:.1f}")

    header = ["attention", "model", "top-1 (%)", "minutes"]
    return markdown_table(header, [(row.attention, row.model, *figures(row)) for row in rows])


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__, prog="python -m studies attentions")
    parser.add_argument("config", metavar="CONFIG", help="path of a config, whose model_name is replaced")
    parser.add_argument("--size", choices=["pico", "tiny", "small"], default="pico", help="(default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="continue each run from its newest checkpoint")
    add_run_options(parser, list(ATTENTIONS), work_dir="work_dirs/attentions", table="accuracy")
    args = parser.parse_args(argv)
    out = args.out or args.work_dir / "accuracy"
    ensure_writable(f"{out}.md")
    how = dict(work_dir=args.work_dir, jobs=args.jobs, resume="auto" if args.resume else None)
    command = shlex.join(["python", "-m", "studies", "attentions", *argv])
    for rows in compare_accuracy(args.attentions, args.config, size=args.size, options=args.options, **how):
        report = Report("Accuracy of attentions", args.config, [accuracy_table(rows)], list(map(asdict, rows)))
        report.write(out, command, machine_description())
    print(report.page(command, machine_description()))
