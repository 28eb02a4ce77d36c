"""Random numbers and samples that follow from where a run is, not from how it came there.

A generator that runs on for a whole training would have to be saved with each checkpoint, on every rank and in every
worker, and a worker has always run ahead of the step that is saved. So no state is kept: before each use the generators
are seeded from a hash of the run's seed and the place of the use. A run that was stopped any number of times draws what
an uninterrupted one draws.

An index leaves the sampler as a `SampleIndex`, which carries its place to the process that loads the sample: workers
that live on from epoch to epoch, or have fetched ahead, need no message.
"""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_dist_info
from mmengine.hooks import Hook
from mmengine.registry import DATA_SAMPLERS, DATASETS
from mmengine.runner import Runner
from torch.utils.data import Sampler

from soft_vit.registry import HOOKS, register

__all__ = [
    "BatchPositionHook",
    "PositionSampler",
    "SampleIndex",
    "SeededDataset",
    "run_seed",
    "seed_sample",
    "seed_step",
    "seed_worker",
    "seeded_generator",
]

# The first word of a key, so that a step and a sample of the same numbers draw differently.
_STEP, _SAMPLE, _WORKER, _SHARED = 1, 2, 3, 4


def _seed_generators(*key: int) -> int:
    """Seed `random` and NumPy's global generator from a hash of the key; returns a seed for torch's generators."""
    # Python's generator, torch's, and four words of 32 bits for NumPy's.
    words = np.random.SeedSequence(key).generate_state(4, np.uint64)
    random.seed(int(words[0]))
    np.random.seed(words[2:].view(np.uint32))  # noqa: NPY002  the transforms of MMPretrain read the global generator
    return int(words[1])


def seed_step(seed: int, rank: int, iteration: int) -> None:
    """Seed the global generators of the CPU and the current GPU for a training step; rank and iteration from 0."""
    word = _seed_generators(_STEP, seed, rank, iteration)
    # torch.manual_seed visits every kind of device, which takes longer than the rest of this function.
    torch.default_generator.manual_seed(word)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(word)


def seed_sample(seed: int, epoch: int, position: int) -> None:
    """Seed the global generators of the CPU for the sample at a position of an epoch's order over all ranks."""
    torch.default_generator.manual_seed(_seed_generators(_SAMPLE, seed, epoch, position))


def seed_worker(rank: int) -> None:
    """Seed the global generators of a data worker, which torch seeds alike on every rank."""
    torch.default_generator.manual_seed(_seed_generators(_WORKER, torch.initial_seed(), rank))


def seeded_generator(seed: int, iteration: int) -> torch.Generator:
    """A generator of the CPU for what all ranks draw alike before an iteration, counted from 0."""
    (word,) = np.random.SeedSequence((_SHARED, seed, iteration)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(word))


def run_seed(runner: Runner) -> int:
    """The seed that all ranks of a run share; a resumed run without its own seed uses its checkpoint's."""
    own = runner._randomness_cfg.get("diff_rank_seed", False)
    return runner.seed - runner.rank if own else runner.seed


class SampleIndex(int):
    """An index of a data set, an int, with the key for `seed_sample`: seed, epoch, position."""

    key: tuple[int, int, int]

    def __new__(cls, index: int, key: tuple[int, int, int]) -> "SampleIndex":
        self = super().__new__(cls, index)
        self.key = key
        return self

    def __getnewargs__(self) -> tuple[int, tuple[int, int, int]]:
        return int(self), self.key


class SeededDataset:
    """A data set that seeds each sample from the key of its `SampleIndex`; in all else the given one.

    dataset: the config of a data set.
    """

    def __init__(self, dataset: dict) -> None:
        self.dataset = DATASETS.build(dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if isinstance(index, SampleIndex):
            seed_sample(*index.key)
        return self.dataset[int(index)]

    def __getattr__(self, name: str) -> Any:
        # Special names would let a loader bypass __getitem__; a copy looks for `dataset` before it exists.
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # Hooks replace the pipeline of a data set during a run.
        if name == "dataset":
            super().__setattr__(name, value)
        else:
            setattr(self.dataset, name, value)


class PositionSampler(Sampler):
    """Another sampler's indices as `SampleIndex`, from any batch of an epoch on.

    sampler: config of the other sampler. It gives rank r of R the entries r, r + R, r + 2R, ... of an order that all
    ranks share, as those of MMEngine and MMPretrain do; an entry is then augmented alike for any number of ranks. A
    sample that occurs again in an epoch is augmented differently.
    """

    def __init__(self, dataset: Any, sampler: dict, seed: int | None = None) -> None:
        self.sampler = DATA_SAMPLERS.build(sampler, default_args={"dataset": dataset, "seed": seed or 0})
        self._order_follows_run = "seed" not in sampler
        self._rank, self._num_ranks = get_dist_info()
        self._seed, self._epoch = seed or 0, 0
        # No samples before `begin`: a loop that creates its iterator early must not load skipped ones.
        self._skipped: int | None = None

    def begin(self, seed: int, epoch: int, skipped: int) -> None:
        """Set the seed of the run, the epoch, and how many samples of this rank the next pass skips."""
        self._seed, self._skipped = seed, skipped
        if self._order_follows_run:
            self.sampler.seed = seed
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[SampleIndex]:
        if self._skipped is None:
            return
        seed, epoch, skipped = self._seed, self._epoch, self._skipped
        self._skipped = 0
        for place, index in enumerate(self.sampler):
            if place >= skipped:
                yield SampleIndex(index, (seed, epoch, place * self._num_ranks + self._rank))


@register(HOOKS)
class BatchPositionHook(Hook):
    """Writes the number of processes, their batch and the steps of an epoch into `meta` of each checkpoint.

    A resumed run with other steps or another global batch is a ValueError, because the position among
    the samples and in the schedule is counted in steps; other processes with the same global
    batch are a warning.
    """

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint["meta"]["batches"] = self._describe(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        # Describing a test would build its training data.
        if not runner._resume:
            return
        meta = checkpoint.get("meta", {})
        if meta.get("iter", 0) > runner.max_iters:
            raise ValueError(
                f"The run is already finished: the checkpoint is from iteration {meta['iter']} of {runner.max_iters}; "
                "set train_cfg to more epochs or iterations, or measure the checkpoint with tools/test.py."
            )
        if overruled := _overruled(runner, checkpoint):
            runner.logger.warning(f"The checkpoint overrules the config: {'; '.join(overruled)}.")
        before = meta.get("batches")
        if before is None or before == (now := self._describe(runner)):
            return
        both = f"was written by {_sentence(before)}, and this run has {_sentence(now)}"
        same_batch = before["processes"] * before["batch_size"] == now["processes"] * now["batch_size"]
        if not same_batch or before["steps"] != now["steps"]:
            raise ValueError(
                f"The checkpoint {both}; resume with the same data and global batch, or begin a run from its weights "
                "with load_from."
            )
        runner.logger.warning(f"The checkpoint {both}: the order of samples is kept, random numbers of steps are not.")

    @staticmethod
    def _describe(runner: Runner) -> dict[str, int]:
        loader = runner.train_dataloader
        # The loader's own is None if the config names a batch sampler, as mmdet's do.
        batch_size = loader.batch_sampler.batch_size
        return {"processes": runner.world_size, "batch_size": batch_size, "steps": len(loader)}


def _sentence(batches: dict[str, int]) -> str:
    return "{processes} processes of batch {batch_size} with {steps} steps an epoch".format(**batches)


# What schedulers and groups of parameters count or compute as they go.
_MOVING = ("params", "lr", "last_step", "base_values", "verbose")


def _overruled(runner: Runner, checkpoint: dict) -> list[str]:
    """`name OLD instead of NEW` for each setting of the optimizer and its schedulers that a checkpoint replaces."""
    wrapper, schedulers = runner.optim_wrapper, runner.param_schedulers
    # Several optimizers have a dictionary each.
    if not hasattr(wrapper, "param_groups") or not isinstance(schedulers, list):
        return []
    # A wrapper may list settings of its own after the groups of its optimizer.
    groups = zip((checkpoint.get("optimizer") or {}).get("param_groups", []), wrapper.param_groups, strict=False)
    states = (scheduler.state_dict() for scheduler in schedulers)
    found: dict[str, list[str]] = {}
    for old, new in (*groups, *zip(checkpoint.get("param_schedulers") or [], states, strict=False)):
        for name, value in old.items():
            if name.startswith("_") or name in _MOVING or name not in new:
                continue
            if value != new[name]:
                found.setdefault(name, []).append(f"{name} {value} instead of {new[name]}")
    # With a rate for each layer there are dozens of groups.
    distinct = [list(dict.fromkeys(changes)) for changes in found.values()]
    return [first + (f", and {len(others)} more" if others else "") for first, *others in distinct]
