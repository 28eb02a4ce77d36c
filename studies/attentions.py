"""Train a config once with each attention, and compare the accuracies.

python -m studies attentions configs/demo/soft_pico_shapes.py
"""

import contextlib
import multiprocessing
import shlex
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.report import Report
from benchmarks.timer import machine_description
from soft_vit.cli import ArgumentParser, add_config_options
from soft_vit.engine.config import find_config
from soft_vit.engine.run import train
from soft_vit.layers import ATTENTIONS
from soft_vit.models import model_name
from soft_vit.text_tables import error_cell, markdown_table
from soft_vit.weights.files import ensure_writable

LOG_NAME = "console.log"

COLUMNS = ("attention", "model", "top1", "images", "minutes", "error")
Row = dict[str, Any]
"""The run of one attention: attention, model, top1 of its last validation in percent, images, minutes, error."""


def compare_accuracy(
    attentions: Sequence[str],
    config: str | Path,
    *,
    size: str = "pico",
    options: dict[str, Any] | None = None,
    work_dir: str | Path,
    jobs: int = 1,
    resume: str | None = None,
    progress: bool = True,
) -> Iterator[list[Row]]:
    """Train a config with the pyramid of each attention, `jobs` at a time; yield all rows whenever a run ends.

    Runs are in the folders `work_dir/<model>`, each with its output in console.log. One that fails, or whose process
    dies, does not end the others. options: of the config. resume: as in `train`. Raises ValueError for an unknown
    attention or size and for jobs below 1, and FileNotFoundError for a missing config.
    """
    models = {model_name(attention, size): attention for attention in attentions}
    rows = {name: Row(dict.fromkeys(COLUMNS), attention=own, model=name) for name, own in models.items()}
    find_config(config)
    pool = ThreadPoolExecutor(jobs)
    threads = max(1, torch.get_num_threads() // jobs)
    try:
        runs: dict[Future, str] = {}
        for name in rows:
            own = {**(options or {}), "model.model_name": name}
            runs[pool.submit(_in_own_process, str(config), own, Path(work_dir) / name, resume, threads)] = name
        for run in tqdm(as_completed(runs), total=len(runs), disable=not progress, desc="training"):
            error = run.exception()
            rows[runs[run]] |= {"error": error_cell(error)} if error else run.result()
            yield list(rows.values())
    finally:
        # After an interrupt, cancel the runs that have not started.
        pool.shutdown(cancel_futures=True)


def _in_own_process(*arguments: Any) -> Row:
    """Run `_train_one` in a new process, with the random state, registries and memory of a first run.

    In a shared pool, a process that dies would end all runs.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_train_one, *arguments).result()


def _train_one(config: str, options: dict, work_dir: Path, resume: str | None, threads: int) -> Row:
    torch.set_num_threads(threads)
    work_dir.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with open(work_dir / LOG_NAME, "a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        result = train(config, work_dir=work_dir, options=options, resume=resume)
    return {"top1": result.top1, "images": result.images, "minutes": (time.perf_counter() - start) / 60}


def accuracy_table(rows: Sequence[Row]) -> str:
    """Return a Markdown table. The cells of unfinished runs are empty."""

    def figures(row: Row) -> tuple[str, str]:
        return (row["error"] or "", "") if row["top1"] is None else (f"{row['top1']:.1f}", f"{row['minutes']:.1f}")

    header = ["attention", "model", "top-1 (%)", "minutes"]
    return markdown_table(header, [(row["attention"], row["model"], *figures(row)) for row in rows])


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__, prog="python -m studies attentions")
    parser.add_argument("config", metavar="CONFIG", help="path of a config, whose model_name is replaced")
    names = list(ATTENTIONS)
    parser.add_argument("attentions", nargs="*", default=names, metavar="ATTENTION", help="(default: all)")
    parser.add_argument("--size", choices=["pico", "tiny", "small"], default="pico", help="of the pyramids")
    what = "continue each run from its newest checkpoint"
    parser.add_argument("--resume", action="store_const", const="auto", help=what)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, sharing the CPU's threads")
    parser.add_argument("--work-dir", type=Path, default=Path("work_dirs/attentions"), help="has a folder per run")
    parser.add_argument("--out", type=Path, metavar="PREFIX", help="of .md and .csv (default: WORK_DIR/accuracy)")
    add_config_options(parser)
    arguments = parser.arguments(argv)
    out = arguments.pop("out") or arguments["work_dir"] / "accuracy"
    ensure_writable(f"{out}.md")
    command = shlex.join(["python", "-m", "studies", "attentions", *argv])
    for rows in compare_accuracy(**arguments):
        report = Report("Accuracy of attentions", str(arguments["config"]), [accuracy_table(rows)], rows)
        report.write(out, command, machine_description())
    print(report.page(command, machine_description()))
