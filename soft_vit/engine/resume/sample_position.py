"""Samples that know their place in the order of an epoch, and draw their augmentation from it.

An index leaves the sampler as a `SampleIndex`, which carries the place to whichever process loads the sample: workers
that live on from epoch to epoch, or have fetched ahead, need not be told anything.
"""

from collections.abc import Iterator
from typing import Any

from mmengine.dist import get_dist_info
from mmengine.registry import DATA_SAMPLERS, DATASETS
from torch.utils.data import Sampler

from soft_vit.engine.resume.step_seed_hook import seed_sample

__all__ = ["PositionSampler", "SampleIndex", "SeededDataset"]


class SampleIndex(int):
    """An index of a data set, an int in every respect, with the key for `seed_sample`: seed, epoch, position."""

    key: tuple[int, int, int]

    def __new__(cls, index: int, key: tuple[int, int, int]) -> "SampleIndex":
        self = super().__new__(cls, index)
        self.key = key
        return self

    def __getnewargs__(self) -> tuple[int, tuple[int, int, int]]:
        return int(self), self.key


class SeededDataset:
    """A data set each of whose samples is drawn from the key of its `SampleIndex`; in all else the given one.

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
        # Not the special names: a loader would fetch past __getitem__, and a copy would look here for `dataset`.
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)


class PositionSampler(Sampler):
    """Another sampler's indices as `SampleIndex`, from any batch of an epoch on.

    sampler: config of the other sampler. It gives rank r of R what stands at r, r + R, r + 2R, ... of an order that all
    ranks share, as those of MMEngine and MMPretrain do; the sample at a place is then augmented alike for any number of
    ranks. A sample that occurs again in an epoch is augmented anew.
    """

    def __init__(self, dataset: Any, sampler: dict, seed: int | None = None) -> None:
        self.sampler = DATA_SAMPLERS.build(sampler, default_args={"dataset": dataset, "seed": seed or 0})
        self._order_follows_run = "seed" not in sampler
        self._rank, self._num_ranks = get_dist_info()
        self._seed, self._epoch = seed or 0, 0
        # No samples before `begin`: a loop that makes its iterator early must not load what will be skipped.
        self._skipped: int | None = None

    def begin(self, seed: int, epoch: int, skipped: int) -> None:
        """Set the seed of the run, the epoch, and how many samples of this rank the next pass leaves out."""
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
