"""Train one config several times, each run in its own process."""

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

LOG_NAME = "console.log"

# Top-1 of the last validation in percent, number of its images, minutes.
Outcome = tuple[float | None, int, float]


def train_each(
    config: str | Path,
    runs: Mapping[str, Mapping[str, Any]],
    *,
    work_dir: str | Path,
    jobs: int = 1,
    resume: str | None = None,
    progress: bool = True,
) -> Iterator[tuple[str, Outcome | Exception]]:
    """Train a config once for each entry of runs, `jobs` at a time.

    runs: options of the config by folder in work_dir. A run writes its output to console.log in its folder.

    resume: as in `train`.

    Yields each folder with its outcome when its run ends: top-1, number of images and minutes, or the error. A run that
    fails, or whose process dies, does not end the others. Raises ValueError for jobs below 1, and FileNotFoundError for
    a missing config.
    """
    find_config(config)
    pool = ThreadPoolExecutor(jobs)
    threads = max(1, torch.get_num_threads() // jobs)
    try:
        futures: dict[Future, str] = {
            pool.submit(_in_own_process, str(config), dict(options), Path(work_dir) / name, resume, threads): name
            for name, options in runs.items()
        }
        for future in tqdm(as_completed(futures), total=len(futures), disable=not progress, desc="training"):
            error = future.exception()
            yield futures[future], error if isinstance(error, Exception) else future.result()
    finally:
        # After an interrupt, cancel the runs that have not started.
        pool.shutdown(cancel_futures=True)


def _in_own_process(*arguments: Any) -> Outcome:
    """Run `_train_one` in a new process, with the random state, registries and memory of a first run.

    In a shared pool, a process that dies would end all runs.
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
    """Add the options of studies that train once with each attention."""
    parser.add_argument("attentions", nargs="*", default=list(attentions), metavar="ATTENTION", help="(default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, sharing the CPU's threads (default: 1)")
    parser.add_argument("--work-dir", type=Path, default=work_dir, help="has a folder per run")
    parser.add_argument("--out", type=Path, metavar="PREFIX", help=f"of .md and .csv (default: WORK_DIR/{table})")
    add_config_options(parser)
