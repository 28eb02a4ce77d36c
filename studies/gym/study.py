"""A study: pilot runs that choose a learning rate for each attention, then a run per seed. Studies are resumable."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from soft_vit.cli import literal
from soft_vit.layers import attention_class
from soft_vit.resume.lock import only_run_in
from soft_vit.resume.stop import Stop, listening, shield
from studies.gym import TASKS
from studies.gym.training import EVALUATIONS, Result, Run, make_model, train

LEARNING_RATES = (1e-3, 3e-3, 6e-3)
# In this task, a third of the steps distinguishes learning rates; in the others, most attentions are still at chance.
PILOT_TASK = "rank"
# The seeds of a study's runs are small numbers.
PILOT_SEED = 10**7

# Enough for softmax attention to learn and for seeds to agree on the order of attentions.
STEPS = {"recall": 120, "far_pair": 800, "pathfinder": 600, "mirror": 360, "rank": 60, "maze": 300, "listops": 300}
STEPS["digits"] = 100


@dataclass
class Study:
    """Cells that are each run with the same number of seeds. Each result is a file in `<out>/runs`.

    A cell is a run, whose seed and learning rate do not matter, for a task and an attention with options.
    """

    out: Path
    cells: Sequence[Run]
    seeds: int = 3

    def path(self, cell: Run, name: str) -> Path:
        task = "-".join([cell.task, *(str(value) for value in cell.task_options.values())])
        return self.out / "runs" / task / cell.kind.replace(":", "@") / f"{name}.json"

    def pilots(self, cell: Run) -> dict[Path, Run]:
        """Return the pilots of a cell's attention by path: one run per learning rate, with a third of the steps."""
        pilot = replace(cell, task=PILOT_TASK, seed=PILOT_SEED, steps=STEPS[PILOT_TASK] // 3, task_options={})
        return {self.path(pilot, f"pilot-{lr:g}"): replace(pilot, lr=lr) for lr in LEARNING_RATES}

    def runs(self, cell: Run) -> dict[Path, Run]:
        """Return the runs of all seeds by path, at the best learning rate of the pilots, which must have ended."""
        best = min(map(Result.load, self.pilots(cell)), key=lambda result: result.loss[-1]).run.lr
        return {self.path(cell, f"seed{seed}"): replace(cell, seed=seed, lr=best) for seed in range(self.seeds)}

    def results(self, cell: Run) -> list[Result]:
        """Return the results that exist, one per seed."""
        paths = (self.path(cell, f"seed{seed}") for seed in range(self.seeds))
        return [Result.load(path) for path in paths if path.exists()]

    def train(self, jobs: int = 1, progress: bool = True) -> None:
        """Train the missing runs in `jobs` single-threaded processes: first all pilots, then all seeds.

        At a signal, the runs that have begun are finished and saved, and the process ends with code 75. Raises
        ValueError before training if a task or an attention rejects its options, if a result in the folder is of a run
        with other settings, or if another process trains in the folder.
        """
        for cell in self.cells:
            make_model(TASKS[cell.task](**cell.task_options), cell)
        pool, stop = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_begin_worker), Stop()
        with only_run_in(self.out), listening(), pool:
            try:
                for stage, evaluations in ((self.pilots, 1), (self.runs, EVALUATIONS)):
                    runs = {path: run for cell in self.cells for path, run in stage(cell).items()}
                    missing = [item for item in runs.items() if not is_done(*item)]
                    jobs_left = [pool.submit(train_and_save, *item, evaluations) for item in missing]
                    for job in tqdm(as_completed(jobs_left), total=len(jobs_left), unit="run", disable=not progress):
                        job.result()
                        if stop.is_asked():
                            stop.leave()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def _begin_worker() -> None:
    torch.set_num_threads(1)
    shield()


def is_done(path: Path, run: Run) -> bool:
    """Return whether a run's result exists; raise ValueError for the result of another run."""
    if path.exists() and Result.load(path).run != run:
        raise ValueError(f"{path} must be of a run with the same settings. Use another --out, or the same settings.")
    return path.exists()


def train_and_save(path: Path, run: Run, evaluations: int) -> None:
    train(run, evaluations).save(path)


def parse_kind(text: str) -> tuple[str, dict[str, Any]]:
    """Return an attention and its options from text such as `soft:sampling=avg,ridge=0.1`.

    Raises ValueError for an unknown attention, and for an option without a value.
    """
    name, _, options = text.partition(":")
    attention_class(name)
    given = [option.partition("=") for option in options.split(",") if option]
    if not all(equals for _, equals, _ in given):
        raise ValueError(f"Options of {name} must be NAME=VALUE, got {options}.")
    return name, {option: literal(value) for option, _, value in given}
