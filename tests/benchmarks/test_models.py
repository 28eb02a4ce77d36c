"""Models that are timed, their batches, and those that run out of memory."""

import pytest
import torch

from benchmarks import models as module
from benchmarks.models import best_batch_size, measure_models, profile_table

SMALL = dict(batch_size=2, img_size=(32, 32), rounds=3)


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_every_model_is_timed_in_every_mode():
    # timm's model is built for 224 x 224 pixels; a folded model has no gradients.
    names = ["soft_pico", "vit_tiny_patch16_224", "soft_pico+folded", "soft_pico"]
    timings = measure_models(names, **SMALL | dict(img_size=(32, 48)), memory=True)
    labels = ["soft_pico", "vit_tiny_patch16_224", "soft_pico+folded", "soft_pico (2)"]
    assert [(t.mode, t.target) for t in timings] == [
        *(("inference", label) for label in labels),
        *(("training", label) for label in labels if "folded" not in label),
    ]
    assert all(len(t.seconds) == 3 and t.size == 2 for t in timings)
    assert timings[0].memory < timings[4].memory
    assert {timing.flops for timing in timings if "vit" not in timing.target} == {timings[0].flops}
    assert all(timing.of_peak > 0 for timing in timings)


def test_a_profile_counts_the_operators_that_an_operator_calls():
    x, layer = torch.randn(5, 7), torch.nn.Linear(7, 3)
    table = cells(profile_table(lambda: [layer(x) for _ in range(4)]))
    calls = {name: int(count) for name, count, *_ in table}
    # Each layer is a linear, which calls a transposition and an addmm.
    assert calls["aten::linear"] == calls["aten::addmm"] == 4
    assert calls["all"] == sum(calls.values()) - calls["all"]


def test_each_case_has_its_own_best_batch(monkeypatch):
    """Every step takes a second, and there is memory for 20 images in training."""

    def make_step(mode, name, model, size, device, dtype, batch):
        def step():
            if mode == "training" and batch > 20:
                raise torch.cuda.OutOfMemoryError

        return step

    monkeypatch.setattr(module, "_make_step", make_step)
    monkeypatch.setattr("benchmarks.timer.seconds_of", lambda step, *_: [step(), 1.0][1])
    timings = measure_models(["soft_pico"], batch_size="auto", max_batch_size=32, rounds=4)
    assert [(t.mode, t.size, t.rate.median) for t in timings] == [("inference", 32, 32), ("training", 16, 16)]


# Images per second by batch.
SATURATING = {8: 100, 16: 180, 32: 280, 64: 350, 128: 353, 256: 340, 512: 900}


@pytest.mark.parametrize(
    ("rates", "memory", "limit", "tried", "best"),
    [
        (SATURATING, 10**9, 512, [8, 16, 32, 64, 128], 128),
        ({8: 100, 16: 180, 32: 90}, 10**9, 512, [8, 16, 32], 16),
        (SATURATING, 10**9, 50, [8, 16, 32], 32),
        (SATURATING, 40, 512, [8, 16, 32, 64], 32),
        (SATURATING, 4, 512, [8], None),
        ({3: 10}, 10**9, 3, [3], 3),
    ],
    ids=["saturation", "loss", "limit between", "memory", "no memory", "limit below the start"],
)
def test_where_the_search_ends(rates, memory, limit, tried, best):
    asked = []

    def seconds(batch: int) -> float:
        asked.append(batch)
        if batch > memory:
            raise torch.cuda.OutOfMemoryError
        return batch / rates[batch]

    assert best_batch_size(seconds, limit) == best
    assert asked == tried
