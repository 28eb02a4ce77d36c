"""Train a config once for each attention and compare the accuracies."""

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from soft_vit.engine.config import find_config
from soft_vit.engine.errors import one_line
from soft_vit.engine.run import train
from soft_vit.models.names import model_name
from soft_vit.text_tables import markdown_table

__all__ = ["AccuracyRow", "accuracy_table", "compare_accuracy", "require_jobs", "train_each"]

LOG_NAME = "console.log"

# Top-1 of the last validation in percent, number of its images, minutes.
Outcome = tuple[float | None, int, float]


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

    Every run has its own folder `work_dir/<model>`, see `train_each`. A run that fails, or whose process dies, leaves
    its error in its row; the others go on. resume: continue each from its newest checkpoint; a finished one is only
    validated. on_row: called with all rows, in the order of attentions, whenever a run ends. Raises
    ValueError for an attention or a size without a model, and what `train_each` raises.
    """
    all_rows = [AccuracyRow(attention, model_name(attention, size)) for attention in attentions]
    rows = {row.model: row for row in all_rows}
    runs = {name: {**(options or {}), "model.model_name": name} for name in rows}
    for name, outcome in train_each(
        config, runs, work_dir=work_dir, jobs=jobs, resume="auto" if resume else None, progress=progress
    ):
        if isinstance(outcome, Exception):
            # A failing attention is a result of the comparison, not its end.
            rows[name].error = f"{type(outcome).__name__}: {one_line(outcome)}"
        else:
            rows[name].top1, rows[name].images, rows[name].minutes = outcome
        if on_row is not None:
            on_row(all_rows)
    return all_rows


def require_jobs(jobs: int) -> None:
    """Raise ValueError for fewer than 1 run at a time."""
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}; run at least 1 process at a time.")


def train_each(
    config: str | Path,
    runs: Mapping[str, Mapping[str, Any]],
    *,
    work_dir: str | Path,
    jobs: int = 1,
    resume: str | None = None,
    progress: bool = True,
) -> Iterator[tuple[str, Outcome | Exception]]:
    """Train a config once for each entry of runs, a folder in work_dir with options of the config, `jobs` at a time.

    Every run has its own process, and console.log in its folder holds what it prints. Yields each folder with top-1,
    number of images and minutes, or with the error, as the runs end. resume: as in `train`. Raises
    ValueError for jobs below 1, and FileNotFoundError for a config that is missing.
    """
    require_jobs(jobs)
    find_config(config)
    threads = max(1, torch.get_num_threads() // jobs)
    pool = ThreadPoolExecutor(jobs)
    try:
        futures: dict[Future, str] = {
            pool.submit(_in_own_process, str(config), dict(options), Path(work_dir) / name, resume, threads): name
            for name, options in runs.items()
        }
        for future in tqdm(as_completed(futures), total=len(futures), disable=not progress, desc="training"):
            try:
                outcome = future.result()
            except Exception as error:
                outcome = error
            yield futures[future], outcome
    finally:
        # After an interrupt, runs that have not begun are cancelled.
        pool.shutdown(cancel_futures=True)


def _in_own_process(*arguments: Any) -> Outcome:
    """Run `_train_one` in a fresh process, with the random state, registries and memory of a first run.

    A shared pool would be lost to all runs when one process dies.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_train_one, *arguments).result()


def _train_one(config: str, options: dict, work_dir: Path, resume: str | None, threads: int) -> Outcome:
    torch.set_num_threads(threads)
    work_dir.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with open(work_dir / LOG_NAME, "a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        result = train(config, work_dir=work_dir, options=options, resume=resume)
    return result.top1, result.images, (time.perf_counter() - start) / 60


def accuracy_table(rows: Sequence[AccuracyRow]) -> str:
    """A Markdown table; the cells of unfinished runs are empty."""

    def figures(row: AccuracyRow) -> tuple[str, str]:
        return (row.error, "") if row.top1 is None else (f"{row.top1:.1f}", f"{row.minutes:.1f}")

    header = ["attention", "model", "top-1 (%)", "minutes"]
    return markdown_table(header, [(row.attention, row.model, *figures(row)) for row in rows])
