"""Random numbers that depend on the position of a run alone, not on its interruptions.

Generators that run through a whole training would have to be saved with each checkpoint, on every rank and in every
worker, and workers are always ahead of the step that is saved. Instead, the generators are seeded before each use, from
a hash of the run's seed and the position. A run that was stopped any number of times draws the same numbers as an
uninterrupted one.
"""

import random

import numpy as np
import torch

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


class SampleIndex(int):
    """An index of a data set, an int, with the key for `seed_sample`: seed, epoch, position.

    A sampler that yields it carries the position to the process that loads the sample; persistent workers and workers
    that prefetch need no message. A batch sampler may add `seq_len`, the number of patches of the images of its batch.
    """

    key: tuple[int, int, int]
    seq_len: int

    def __new__(cls, index: int, key: tuple[int, int, int]) -> "SampleIndex":
        self = super().__new__(cls, index)
        self.key = key
        return self

    def __getnewargs__(self) -> tuple[int, tuple[int, int, int]]:
        return int(self), self.key
