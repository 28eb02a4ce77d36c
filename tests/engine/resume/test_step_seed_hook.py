"""Random numbers follow from the place in a run."""

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from soft_vit.engine.resume.step_seed_hook import StepSeedHook, run_seed, seed_sample, seed_step, seed_worker


def draw() -> tuple[float, float, float]:
    return random.random(), np.random.random(), torch.rand(()).item()  # noqa: NPY002  the global generators are meant


@pytest.mark.parametrize("seed", [seed_step, seed_sample])
def test_same_place_same_numbers(seed):
    seed(3, 1, 7)
    first = draw(), draw()
    seed(3, 1, 8)
    draw()
    seed(3, 1, 7)
    assert (draw(), draw()) == first
    assert first[0] != first[1]


def test_no_two_places_share_a_number():
    places = [
        (seed, *key)
        for seed in (seed_step, seed_sample)
        for key in itertools.product((0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 1000, 2**33))
    ]
    drawn = []
    for seed, *key in places:
        seed(*key)
        drawn.append(draw())
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


def test_neighbouring_steps_are_not_correlated():
    drawn = []
    for step in range(2000):
        seed_step(0, 0, step)
        drawn.append(draw())
    drawn = np.array(drawn) - 0.5
    # Three generators and the next step's: every correlation is within five standard errors of zero.
    columns = np.concatenate([drawn[:-1], drawn[1:]], axis=1).T
    correlation = np.corrcoef(columns) - np.eye(6)
    assert np.abs(correlation).max() < 5 / np.sqrt(len(drawn))
    assert np.abs(drawn.mean(0)).max() < 5 * np.sqrt(1 / 12 / len(drawn))


def test_a_step_seeds_a_gpu_in_use_and_a_sample_does_not(monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed", seeds.append)
    seed_step(0, 0, 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    seed_sample(0, 0, 0)
    assert seeds == []
    seed_step(0, 0, 0)
    assert seeds == [torch.initial_seed() % 2**64]


@pytest.mark.parametrize(("own", "rank", "expected"), [(False, 3, 10), (True, 3, 7), (True, 0, 10)])
def test_all_ranks_share_the_seed_of_the_run(own, rank, expected):
    # MMEngine adds the rank to `seed` when each has its own.
    runner = SimpleNamespace(seed=10, rank=rank, iter=5, _randomness_cfg={"diff_rank_seed": own})
    assert run_seed(runner) == expected
    StepSeedHook().before_train_iter(runner, batch_idx=0)
    drawn = draw()
    seed_step(expected, rank, 5)
    assert draw() == drawn
