"""Random numbers follow from the position in a run."""

import itertools
import random

import numpy as np
import torch

from soft_vit.resume.position import seed_sample, seed_step, seed_worker


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
