"""Train a config once for each attention and compare the accuracies."""

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from soft_vit.engine.config import find_config
from soft_vit.engine.errors import UserError, as_user_error, one_line
from soft_vit.engine.run import train
from soft_vit.models.names import model_name
from soft_vit.text_tables import markdown_table

__all__ = ["AccuracyRow", "accuracy_table", "compare_accuracy"]

LOG_NAME = "console.log"


@dataclass
class AccuracyRow:
    """The run of one attention: top-1 of its last validation in percent, on how many images, or its error."""

    attention: str
    model: str
    top1: float | None = None
    images: int = 0
    minutes: float = 0.0
    error: str = ""


def compare_accuracy(
    attentions: Sequence[str],
    config: str | Path,
    *,
    size: str = "pico",
    work_dir: str | Path = "work_dirs/attentions",
    jobs: int = 1,
    options: dict | None = None,
    resume: bool = False,
    on_row: Callable[[list[AccuracyRow]], None] | None = None,
    progress: bool = True,
) -> list[AccuracyRow]:
    """Train `config` with the pyramid of each attention as its model, `jobs` runs at a time.

    Every run has its own process and its own folder `work_dir/<model>`, where console.log holds what it prints. A run
    that fails, or whose process dies, leaves its error in its row; the others go on. resume: continue each from its
    newest checkpoint; a finished one is only validated. on_row: called with all rows, in the order of attentions,
    whenever a run ends. Raises UserError (a ValueError) for an attention or a size without
    a model, or jobs below 1, and FileNotFoundError for a config that is missing.
    """
    if jobs < 1:
        raise UserError(f"jobs is {jobs}; run at least 1 process at a time.")
    with as_user_error():
        rows = [AccuracyRow(attention, model_name(attention, size)) for attention in attentions]
    find_config(config)
    threads = max(1, torch.get_num_threads() // jobs)
    pool = ThreadPoolExecutor(jobs)
    try:
        runs: dict[Future, AccuracyRow] = {
            pool.submit(
                _in_own_process, str(config), row.model, Path(work_dir) / row.model, options, resume, threads
            ): row
            for row in rows
        }
        for run in tqdm(as_completed(runs), total=len(runs), disable=not progress, desc="training"):
            row = runs[run]
            try:
                row.top1, row.images, row.minutes = run.result()
            except Exception as error:
                # A failing attention is a result of the comparison, not its end.
                row.error = f"{type(error).__name__}: {one_line(error)}"
            if on_row is not None:
                on_row(rows)
    finally:
        # After an interrupt, runs that have not begun are cancelled.
        pool.shutdown(cancel_futures=True)
    return rows


def _in_own_process(*arguments: Any) -> tuple[float | None, int, float]:
    """Run `_train_one` in a fresh process, with the random state, registries and memory of a first run.

    A shared pool would be lost to all runs when one process dies.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_train_one, *arguments).result()


def _train_one(
    config: str, model: str, work_dir: Path, options: dict | None, resume: bool, threads: int
) -> tuple[float | None, int, float]:
    torch.set_num_threads(threads)
    work_dir.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with open(work_dir / LOG_NAME, "w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        changes = {**(options or {}), "model.model_name": model}
        result = train(config, work_dir=work_dir, resume="auto" if resume else None, options=changes)
    return result.top1, result.images, (time.perf_counter() - start) / 60


def accuracy_table(rows: Sequence[AccuracyRow]) -> str:
    """A Markdown table; the cells of unfinished runs are empty."""

    def figures(row: AccuracyRow) -> tuple[str, str]:
        return (row.error, "") if row.top1 is None else (f"{row.top1:.1f}", f"{row.minutes:.1f}")

    header = ["attention", "model", "top-1 (%)", "minutes"]
    return markdown_table(header, [(row.attention, row.model, *figures(row)) for row in rows])
