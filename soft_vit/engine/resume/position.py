"""Random numbers and samples that depend on the position of a run alone, not on its interruptions.

Generators that run through a whole training would have to be saved with each checkpoint, on every rank and in every
worker, and workers are always ahead of the step that is saved. Instead, the generators are seeded before each use, from
a hash of the run's seed and the position. A run that was stopped any number of times draws the same numbers as an
uninterrupted one.

The sampler yields each index as a `SampleIndex`, which carries its position to the process that loads the sample.
Persistent workers and workers that prefetch therefore need no message.
"""

import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_dist_info
from mmengine.hooks import EarlyStoppingHook, Hook
from mmengine.registry import DATA_SAMPLERS, DATASETS
from mmengine.runner import Runner
from torch.utils.data import Sampler

from soft_vit.registry import HOOKS, register

# See BatchPositionHook; MMEngine's own hook forgets them.
EarlyStoppingHook.kept = ("wait_count", "best_score")
# The first word of a key, so that a step and a sample with equal numbers have different seeds.
_STEP, _SAMPLE, _WORKER, _SHARED = 1, 2, 3, 4


def _seed_generators(*key: int) -> int:
    """Seed `random` and NumPy's global generator from a hash of the key; return a seed for torch's generators."""
    # One word for Python's generator, one for torch's, and four of 32 bits for NumPy's.
    words = np.random.SeedSequence(key).generate_state(4, np.uint64)
    random.seed(int(words[0]))
    np.random.seed(words[2:].view(np.uint32))  # noqa: NPY002  the transforms of MMPretrain read the global generator
    return int(words[1])


def seed_step(seed: int, rank: int, iteration: int) -> None:
    """Seed the global generators of the CPU and the current GPU for a training step; rank and iteration from 0."""
    word = _seed_generators(_STEP, seed, rank, iteration)
    # torch.manual_seed visits every type of device, which takes longer than the rest of this function.
    torch.default_generator.manual_seed(word)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(word)


def seed_sample(seed: int, epoch: int, position: int) -> None:
    """Seed the global generators of the CPU for the sample at a position of an epoch's order over all ranks."""
    torch.default_generator.manual_seed(_seed_generators(_SAMPLE, seed, epoch, position))


def seed_worker(rank: int) -> None:
    """Seed the global generators of a data worker, to which torch gives the same seed on every rank."""
    torch.default_generator.manual_seed(_seed_generators(_WORKER, torch.initial_seed(), rank))


def seeded_generator(seed: int, iteration: int) -> torch.Generator:
    """Return a CPU generator for numbers that all ranks share before an iteration, counted from 0."""
    (word,) = np.random.SeedSequence((_SHARED, seed, iteration)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(word))


def run_seed(runner: Runner) -> int:
    """Return the seed that all ranks of a run share; a resumed run without a seed uses its checkpoint's."""
    own = runner._randomness_cfg.get("diff_rank_seed", False)
    return runner.seed - runner.rank if own else runner.seed


class SampleIndex(int):
    """An index of a data set, an int, with the key for `seed_sample`: seed, epoch, position.

    A batch sampler may add `seq_len`, the number of patches of the images of its batch.
    """

    key: tuple[int, int, int]
    seq_len: int

    def __new__(cls, index: int, key: tuple[int, int, int]) -> "SampleIndex":
        self = super().__new__(cls, index)
        self.key = key
        return self

    def __getnewargs__(self) -> tuple[int, tuple[int, int, int]]:
        return int(self), self.key


class SeededDataset:
    """Wraps a data set, and seeds each sample from the key of its `SampleIndex`.

    dataset: the config of a data set.
    """

    def __init__(self, dataset: dict) -> None:
        self.dataset = DATASETS.build(dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if isinstance(index, SampleIndex):
            seed_sample(*index.key)
        return self.dataset[index if hasattr(index, "seq_len") else int(index)]

    def __getattr__(self, name: str) -> Any:
        # Special names would let a loader bypass __getitem__; copying looks up `dataset` before it exists.
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
    """Yields the indices of another sampler as `SampleIndex`, starting at any batch of an epoch.

    sampler: config of the other sampler. It gives rank r of R the entries r, r + R, r + 2R, ... of an order that all
    ranks share, as those of MMEngine and MMPretrain do, so augmentation does not depend on the number of ranks. A
    sample that occurs twice in an epoch is augmented differently.
    """

    def __init__(self, dataset: Any, sampler: dict, seed: int | None = None) -> None:
        self.sampler = DATA_SAMPLERS.build(sampler, default_args={"dataset": dataset, "seed": seed or 0})
        self._order_follows_run = "seed" not in sampler
        self._rank, self._num_ranks = get_dist_info()
        self._seed, self._epoch = seed or 0, 0
        # Empty before `begin`: a loop that creates its iterator early must not load skipped samples.
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

    Attributes that a hook names in `kept`, which must be of plain Python types, are saved and restored as well.

    Raises ValueError for a resumed run with another number of steps or another global batch, because positions among
    the samples and in the schedule are counted in steps. Logs a warning for another number of processes with the same
    global batch. Settings of the optimizer and of its schedules come from the checkpoint, as in MMEngine.
    """

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint["meta"]["batches"] = self._describe(runner)
        kept = [hook for hook in runner.hooks if hasattr(hook, "kept")]
        states = [(type(hook).__name__, {name: getattr(hook, name) for name in hook.kept}) for hook in kept]
        checkpoint["meta"]["hooks"] = states

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        # In a test this would build the training data.
        if not runner._resume:
            return
        states = list(checkpoint["meta"].get("hooks", ()))
        for hook in runner.hooks:
            # The first one of its type that is left: a run may have several.
            if state := next((state for state in states if state[0] == type(hook).__name__), None):
                states.remove(state)
                vars(hook).update(copy.deepcopy(state[1]))
        before = checkpoint["meta"].get("batches")
        if before is None or before == (now := self._describe(runner)):
            return
        both = f"was written by {_sentence(before)}, and this run has {_sentence(now)}"
        same_batch = before["processes"] * before["batch_size"] == now["processes"] * now["batch_size"]
        if not same_batch or before["steps"] != now["steps"]:
            raise ValueError(f"The checkpoint {both}; resume with the same data and batch, or use load_from.")
        runner.logger.warning(f"The checkpoint {both}: samples are the same, random numbers of steps differ.")

    @staticmethod
    def _describe(runner: Runner) -> dict[str, int]:
        loader = runner.train_dataloader
        # loader.batch_size is None in configs with a batch sampler, as mmdet's.
        batch_size = loader.batch_sampler.batch_size
        return {"processes": runner.world_size, "batch_size": batch_size, "steps": len(loader)}


def _sentence(batches: dict[str, int]) -> str:
    return "{processes} processes of batch {batch_size} with {steps} steps an epoch".format(**batches)
