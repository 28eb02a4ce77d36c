"""Train one config several times, each run in a process of its own."""

import argparse
import contextlib
import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from soft_vit.cli import add_config_options
from soft_vit.engine.config import find_config
from soft_vit.engine.run import train
from soft_vit.text_tables import rows_as_csv
from soft_vit.weights.files import write_atomically

LOG_NAME = "console.log"

# Top-1 of the last validation in percent, number of its images, minutes.
Outcome = tuple[float | None, int, float]


def require_jobs(jobs: int) -> None:
    """Raise ValueError for fewer than 1 run at a time."""
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}.")


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

    What a run prints is in console.log in its folder. Yields each folder with top-1, number of images and minutes, or
    with the error, as the runs end: one that fails, or whose process dies, does not end the others. resume: as in
    `train`. Raises ValueError for jobs below 1, and FileNotFoundError for a config that is missing.
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
            error = future.exception()
            yield futures[future], error if isinstance(error, Exception) else future.result()
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


def add_run_options(parser: argparse.ArgumentParser, attentions: Sequence[str], work_dir: str, table: str) -> None:
    """Add the options of studies that train once with each attention: which, how many at a time, where results go."""
    parser.add_argument("attentions", nargs="*", default=list(attentions), metavar="ATTENTION", help="(default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, sharing the CPU's threads (default: 1)")
    parser.add_argument(
        "--work-dir",
        type=Path,
        default=Path(work_dir),
        metavar="FOLDER",
        help="for a folder per run (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="PREFIX", help=f"write PREFIX.md and PREFIX.csv (default: WORK_DIR/{table})"
    )
    add_config_options(parser)


def write_tables(out: str | Path, head: str, table: str, rows: Sequence[Any]) -> str:
    """Write out.md, whose text is returned, and out.csv."""
    text = f"{head}\n\n{table}\n"
    write_atomically(f"{out}.md", text.encode())
    write_atomically(f"{out}.csv", rows_as_csv(rows).encode())
    return text
