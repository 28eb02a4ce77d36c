"""Samples are drawn from their place in an epoch, whoever loads them."""

import copy
import pickle
import random
from typing import Any

import mmengine.dataset.sampler
import pytest
from mmengine.dataset import DefaultSampler
from mmengine.registry import DATASETS
from torch.utils.data import DataLoader

from soft_vit.engine.resume import sample_position
from soft_vit.engine.resume.sample_position import PositionSampler, SampleIndex, SeededDataset


class Noise:
    """Thirteen samples, each a new random number."""

    metainfo = {"classes": ("a",)}  # noqa: RUF012

    def __len__(self) -> int:
        return 13

    def __getitem__(self, index: int) -> tuple[int, float]:
        assert type(index) is int
        return index, random.random()

    def __getitems__(self, indices: list[int]) -> list:
        raise AssertionError("goes past the seeding")


@pytest.fixture
def noise(monkeypatch) -> SeededDataset:
    monkeypatch.setattr(DATASETS, "build", lambda config: Noise())
    return SeededDataset({})


def ranks(monkeypatch, rank: int, count: int) -> None:
    for module in (sample_position, mmengine.dataset.sampler):
        monkeypatch.setattr(module, "get_dist_info", lambda: (rank, count))


def sampler(dataset: Any = range(13), seed: int = 5, **options: object) -> PositionSampler:
    return PositionSampler(dataset, {"type": "DefaultSampler", "shuffle": True, **options}, seed)


@pytest.mark.parametrize(
    "copied", [lambda index: pickle.loads(pickle.dumps(index)), copy.deepcopy, lambda index: index]
)
def test_index_is_an_int_with_a_key(copied):
    index = copied(SampleIndex(7, (1, 2, 3)))
    assert index == 7
    assert index.key == (1, 2, 3)
    assert [*range(10)][index] == 7


def test_order_is_that_of_the_sampler():
    ours, theirs = sampler(), DefaultSampler(range(13), seed=5)
    for epoch in (0, 3):
        ours.begin(5, epoch, 0)
        theirs.set_epoch(epoch)
        given = list(ours)
        assert given == list(theirs)
        assert [index.key for index in given] == [(5, epoch, place) for place in range(13)]
    assert len(ours) == 13


def test_skipping():
    ours = sampler()
    assert list(ours) == []
    ours.begin(5, 1, 0)
    whole = list(ours)
    ours.begin(5, 1, 4)
    rest = list(ours)
    assert rest == whole[4:]
    assert [index.key for index in rest] == [index.key for index in whole[4:]]
    # Once: whoever looks through the data again sees all of it.
    assert list(ours) == whole
    assert len(ours) == 13


def test_seed_is_that_of_the_run_or_its_own():
    ours = sampler(seed=5)
    ours.begin(9, 0, 0)
    assert list(ours) == list(DefaultSampler(range(13), seed=9))
    own = PositionSampler(range(13), {"type": "DefaultSampler", "shuffle": True, "seed": 77}, 5)
    own.begin(9, 0, 0)
    assert list(own) == list(DefaultSampler(range(13), seed=77))


def test_ranks_share_one_order(monkeypatch):
    alone = sampler()
    alone.begin(5, 2, 0)
    expected = {index.key: int(index) for index in alone}
    shared = {}
    for rank in (0, 1, 2):
        ranks(monkeypatch, rank, 3)
        ours = sampler(round_up=False)
        ours.begin(5, 2, 0)
        shared.update({index.key: int(index) for index in ours})
    assert shared == expected


class Repeated(DefaultSampler):
    def __iter__(self):
        return (index for index in super().__iter__() for _ in range(3))


def test_repeated_samples_are_drawn_anew(noise):
    ours = PositionSampler(noise, {"type": Repeated}, 0)
    ours.begin(0, 0, 0)
    drawn = [noise[index] for index in ours]
    assert len({index for index, _ in drawn}) == 13
    assert len({value for _, value in drawn}) == 39


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_any_number_of_workers_draws_the_same(noise, workers, persistent):
    def epochs(loader: DataLoader, skipped: dict[int, int]) -> list:
        given = []
        for epoch, start in skipped.items():
            loader.sampler.begin(5, epoch, start)
            given.append([tuple(map(list, zip(*batch, strict=True))) for batch in loader])
        return given

    options = {"batch_size": 4, "collate_fn": list}
    expected = epochs(DataLoader(noise, sampler=sampler(noise), **options), {0: 0, 1: 0})
    assert expected[0] != expected[1]
    loader = DataLoader(noise, sampler=sampler(noise), num_workers=workers, persistent_workers=persistent, **options)
    assert epochs(loader, {0: 0, 1: 0}) == expected
    # Straight into the second epoch, behind its first two batches.
    assert epochs(loader, {1: 8}) == [expected[1][2:]]


def test_data_set_is_the_given_one_in_all_else(noise):
    assert len(noise) == 13
    assert noise.metainfo == {"classes": ("a",)}
    assert not hasattr(noise, "__getitems__")
    assert noise[3][0] == 3
    assert copy.copy(noise).metainfo is Noise.metainfo
    with pytest.raises(AttributeError, match="full_init"):
        noise.full_init()
