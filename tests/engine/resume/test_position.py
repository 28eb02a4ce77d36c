"""Randomness and samples follow from the position in a run."""

import copy
import itertools
import random
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import mmengine.dataset.sampler
import numpy as np
import pytest
import torch
from mmengine.dataset import DefaultSampler
from mmengine.registry import DATASETS
from torch.utils.data import BatchSampler, DataLoader

from soft_vit.engine.resume import position
from soft_vit.engine.resume.position import (
    BatchPositionHook,
    PositionSampler,
    SeededDataset,
    run_seed,
    seed_sample,
    seed_step,
    seed_worker,
)


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
    for module in (position, mmengine.dataset.sampler):
        monkeypatch.setattr(module, "get_dist_info", lambda: (rank, count))


def sampler(dataset: Any = range(13), **options: object) -> PositionSampler:
    return PositionSampler(dataset, {"type": "DefaultSampler", "shuffle": True, **options}, 5)


def test_order_is_that_of_the_sampler():
    """With the seed of the run or one of its own, and skipped samples left out once."""
    for own, seed in (({}, 9), ({"seed": 77}, 77)):
        ours, theirs = sampler(**own), DefaultSampler(range(13), seed=seed)
        # Nothing before the first epoch begins.
        assert list(ours) == []
        for epoch, skipped in ((0, 0), (3, 0), (1, 4)):
            ours.begin(9, epoch, skipped)
            theirs.set_epoch(epoch)
            given = list(ours)
            assert given == list(theirs)[skipped:]
            assert [index.key for index in given] == [(9, epoch, place) for place in range(skipped, 13)]
            assert list(ours) == list(theirs)
        assert len(ours) == 13


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
    """Hooks that replace the pipeline assign to it."""
    assert len(noise) == 13
    assert not hasattr(noise, "__getitems__")
    noise.pipeline = "another"
    assert noise.dataset.pipeline == "another"
    assert copy.copy(noise).metainfo is Noise.metainfo


def draw() -> tuple[float, float, float]:
    return random.random(), np.random.random(), torch.rand(()).item()  # noqa: NPY002  the global generators are meant


def test_a_place_has_numbers_of_its_own():
    places = [
        (seed, *key)
        for seed in (seed_step, seed_sample)
        for key in itertools.product((0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 1000, 2**33))
    ]
    rounds = []
    for _ in range(2):
        drawn = []
        for seed, *key in places:
            seed(*key)
            drawn.append(draw())
        rounds.append(drawn)
    assert rounds[0] == rounds[1]
    for column in zip(*drawn, strict=True):
        assert len(set(column)) == len(places)


def test_workers_of_two_ranks_share_no_number():
    drawn = []
    for rank in (0, 0, 1):
        torch.manual_seed(5)
        seed_worker(rank)
        drawn.append(draw())
    assert drawn[0] == drawn[1]
    assert not set(drawn[0]) & set(drawn[2])


@pytest.mark.parametrize(("own", "rank", "expected"), [(False, 3, 10), (True, 3, 7), (True, 0, 10)])
def test_all_ranks_share_the_seed_of_the_run(own, rank, expected):
    # MMEngine adds the rank to `seed` when each has its own.
    assert run_seed(SimpleNamespace(seed=10, rank=rank, _randomness_cfg={"diff_rank_seed": own})) == expected


def a_run(processes: int, batch_size: int, steps: int, resume: bool = True) -> SimpleNamespace:
    places = range(batch_size * steps)
    loader = DataLoader(places, batch_sampler=BatchSampler(places, batch_size, drop_last=False))
    settings = {"max_iters": 1000, "logger": Mock()}
    return SimpleNamespace(world_size=processes, train_dataloader=loader, _resume=resume, **settings)


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        (a_run(2, 4, 10), "goes on"),
        (a_run(8, 1, 10), "warns"),
        # One more image leaves as many samples for each rank, and a step more.
        (a_run(1, 8, 11), "fails"),
        (a_run(1, 4, 20), "fails"),
        # Starting from weights, not resuming.
        (a_run(1, 4, 20, resume=False), "goes on"),
    ],
)
def test_change(now, outcome):
    checkpoint = {"meta": {}}
    BatchPositionHook().before_save_checkpoint(a_run(2, 4, 10), checkpoint)
    with pytest.raises(ValueError, match="batch 4 with 10") if outcome == "fails" else nullcontext():
        BatchPositionHook().after_load_checkpoint(now, checkpoint)
    assert now.logger.warning.called == (outcome == "warns")
