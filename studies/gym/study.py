"""All runs of a comparison: pilots that choose learning rates, seeds, and where results lie; resumable."""

import ast
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from soft_vit.layers import attention_class, attention_options
from studies.gym import TASKS
from studies.gym.training import EVALUATIONS, ModelName, Result, Run, make_model, train

LEARNING_RATES = (1e-3, 3e-3, 6e-3)
# After a third of its steps, where most attentions are at chance in other tasks, it tells rates apart.
PILOT_TASK = "rank"
# Seeds of tests are small numbers.
PILOT_SEED = 10**7

# Steps, and examples of each: so many that softmax attention learns a task, and that seeds agree on the order of kinds.
SCHEDULES = {
    "recall": (120, 32),
    "far_pair": (800, 32),
    "pathfinder": (600, 32),
    "mirror": (360, 32),
    "rank": (60, 32),
    "maze": (300, 32),
    "listops": (300, 32),
    "digits": (100, 32),
}


@dataclass(frozen=True)
class Cell:
    """One entry of the table: a task and an attention, each with options, in a model."""

    task: str
    attention: str
    model: ModelName = "isotropic"
    steps: int | None = None
    task_options: dict[str, Any] = field(default_factory=dict)
    attention_options: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The attention in the form that `parse_kind` reads, such as soft:sampling=avg."""
        options = ",".join(f"{name}={value}" for name, value in sorted(self.attention_options.items()))
        return f"{self.attention}:{options}" if options else self.attention

    def run(self, seed: int, lr: float, share: int = 1) -> Run:
        steps, batch_size = SCHEDULES[self.task]
        steps = (steps if self.steps is None else self.steps) // share
        options = self.task_options, self.attention_options
        return Run(self.task, self.attention, seed, lr, steps, batch_size, self.model, *options)


@dataclass
class Study:
    """Cells, each with as many seeds; results lie in `<out>/runs`, a file each.

    Raises ValueError for less than 1 seed and less than 3 steps.
    """

    out: Path
    cells: Sequence[Cell]
    seeds: int = 3

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}.")
        for steps in {cell.steps for cell in self.cells} - {None}:
            if steps < 3:
                # The runs that choose a learning rate take a third.
                raise ValueError(f"steps must be at least 3, got {steps}.")

    def path(self, cell: Cell, name: str) -> Path:
        task = "-".join([cell.task, *(str(value) for value in cell.task_options.values())])
        return self.out / "runs" / cell.model / task / cell.kind.replace(":", "@") / f"{name}.json"

    def pilots(self, cell: Cell) -> dict[Path, Run]:
        """Return a run of a cell's kind at each learning rate, a third as long."""
        pilot = replace(cell, task=PILOT_TASK, task_options={})
        return {self.path(pilot, f"pilot-{lr:g}"): pilot.run(PILOT_SEED, lr, share=3) for lr in LEARNING_RATES}

    def runs(self, cell: Cell) -> dict[Path, Run]:
        """Return the runs of all seeds; needs the results of the pilots."""
        best = min(map(Result.load, self.pilots(cell)), key=lambda result: result.loss[-1])
        return {self.path(cell, f"seed{seed}"): cell.run(seed, best.run.lr) for seed in range(self.seeds)}

    def results(self, cell: Cell) -> list[Result]:
        """Return the results of the seeds that have been run."""
        paths = (self.path(cell, f"seed{seed}") for seed in range(self.seeds))
        return [Result.load(path) for path in paths if path.exists()]

    def complete_cells(self) -> list[Cell]:
        """Return the cells whose seeds are all there."""
        return [cell for cell in self.cells if len(self.results(cell)) == self.seeds]

    def train(self, jobs: int = 1, progress: bool = True) -> None:
        """Train what is missing in `jobs` processes of one thread: the pilots of all kinds, then seeds, cell by cell.

        Raises ValueError, before training, for less than 1 job, for a cell whose task or attention refuses its options,
        and where a result in the folder belongs to another run.
        """
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}.")
        for cell in self.cells:
            make_model(TASKS[cell.task](**cell.task_options), cell.run(0, LEARNING_RATES[0]))
        with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                for stage, evaluations in ((self.pilots, 1), (self.runs, EVALUATIONS)):
                    runs = {path: run for cell in self.cells for path, run in stage(cell).items()}
                    missing = [item for item in runs.items() if not is_done(*item)]
                    jobs_left = [pool.submit(train_and_save, *item, evaluations) for item in missing]
                    for job in tqdm(as_completed(jobs_left), total=len(jobs_left), unit="run", disable=not progress):
                        job.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def is_done(path: Path, run: Run) -> bool:
    """Return whether a run's result exists; raise ValueError for the result of another run."""
    if path.exists() and Result.load(path).run != run:
        raise ValueError(f"{path} is of a run with other settings; use another --out, or those settings.")
    return path.exists()


def train_and_save(path: Path, run: Run, evaluations: int) -> None:
    train(run, evaluations).save(path)


def parse_kind(text: str) -> tuple[str, dict[str, Any]]:
    """Return an attention and its options from text such as `soft:sampling=avg,ridge=0.1`.

    Raises ValueError for an attention, or an option of it, that is not known.
    """
    name, _, options = text.partition(":")
    known = attention_options(attention_class(name))
    given = dict(option.partition("=")[::2] for option in options.split(",") if option)
    for option in given:
        if option not in known:
            raise ValueError(f"options of {name} must be among {', '.join(sorted(known))}, got {option!r}.")
    return name, {option: _value(value) for option, value in given.items()}


def _value(text: str) -> Any:
    """Return a Python literal, or else the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
