"""Random numbers that follow from where a run is, not from how it came there.

A generator that runs on for a whole training would have to be saved with each checkpoint, on every rank and in every
worker, and a worker has always run ahead of the step that is saved. So no state is kept: before each use the generators
are seeded from a hash of the run's seed and the place of the use. A run that was stopped any number of times draws what
an uninterrupted one draws.
"""

import random
from typing import Any

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner

from soft_vit.registry import HOOKS, register

__all__ = ["StepSeedHook", "run_seed", "seed_sample", "seed_step", "seed_worker"]

# The first word of what is hashed: a step and a sample with equal numbers draw differently.
_STEP, _SAMPLE, _WORKER = 1, 2, 3


def _seed_generators(*key: int) -> int:
    """Seed `random` and NumPy's global generator from a hash of the key; returns a seed for torch's generators."""
    # Python's generator, torch's, and four words of 32 bits for NumPy's.
    words = np.random.SeedSequence(key).generate_state(4, np.uint64)
    random.seed(int(words[0]))
    np.random.seed(words[2:].view(np.uint32))  # noqa: NPY002  the transforms of MMPretrain read the global generator
    return int(words[1])


def seed_step(seed: int, rank: int, iteration: int) -> None:
    """Seed the global generators of the CPU and of the current GPU for a training step of a rank; from 0, both."""
    word = _seed_generators(_STEP, seed, rank, iteration)
    # torch.manual_seed asks every kind of device, which takes longer than all else here.
    torch.default_generator.manual_seed(word)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(word)


def seed_sample(seed: int, epoch: int, position: int) -> None:
    """Seed the global generators of the CPU for the sample at a position, over all ranks, in an epoch's order."""
    torch.default_generator.manual_seed(_seed_generators(_SAMPLE, seed, epoch, position))


def seed_worker(rank: int) -> None:
    """Seed the global generators of a worker of a data loader, which torch seeds alike on every rank."""
    torch.default_generator.manual_seed(_seed_generators(_WORKER, torch.initial_seed(), rank))


def run_seed(runner: Runner) -> int:
    """The seed that all ranks of a run share; a resumed run without one of its own has its checkpoint's."""
    own = runner._randomness_cfg.get("diff_rank_seed", False)
    return runner.seed - runner.rank if own else runner.seed


@register(HOOKS)
class StepSeedHook(Hook):
    """Seeds the global generators before each step, for drop path, mixup and whatever else draws in one.

    The batch has been loaded by then: what loading it in this process drew changes nothing.
    """

    priority = "VERY_HIGH"

    def before_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        seed_step(run_seed(runner), runner.rank, runner.iter)
