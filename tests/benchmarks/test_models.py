"""The benchmark's bookkeeping; no test looks at how fast anything is."""

from functools import partial

import pytest
import torch

from benchmarks import models as throughput
from benchmarks.models import (
    MODES,
    Timing,
    best_batch_size,
    default_limit,
    measure_throughput,
    throughput_table,
)
from benchmarks.variants import VARIANTS, create_variant


def test_every_model_is_timed_in_every_mode():
    # timm's model is built for 224 x 224 pixels.
    names = ["soft_pico", "vit_tiny_patch16_224", "soft_pico"]
    timings = measure_throughput(names, batch_size=2, img_size=(32, 48), rounds=3)
    labels = ["soft_pico", "vit_tiny_patch16_224", "soft_pico (2)"]
    assert [(t.mode, t.model) for t in timings] == [(m, label) for m in ("inference", "training") for label in labels]
    assert all(0 < t.lower <= t.median <= t.upper for t in timings)


def test_ratios_are_against_the_first_model_of_the_mode():
    figures = [("a", "inference", 8, 10, 9, 11), ("b", "inference", 16, 15, 14, 16), ("a", "training", 32, 4, 3, 5)]
    table = throughput_table([Timing(*row) for row in figures]).splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in table[2:]]
    assert [(row[3], row[-2]) for row in cells] == [("8", "1.00"), ("16", "1.50"), ("32", "1.00")]


def test_variants_of_a_model():
    names = ["soft_pico", "soft_pico+naive", "soft_pico+folded"]
    timings = measure_throughput(names, batch_size=2, img_size=32, rounds=3, memory=True)
    # A folded model has no gradients.
    assert [t.model for t in timings] == names + names[:2]
    plain, naive, _, training, _ = (t.memory_mb for t in timings)
    assert 0 < min(plain, naive) <= max(plain, naive) < training
    assert throughput_table(timings, memory=True).splitlines()[0].split("|")[-2].strip() == "memory (MB)"


def test_tensors_of_a_compiled_model_are_not_counted(monkeypatch):
    """Under the dispatch mode that counts them it would run eagerly."""
    monkeypatch.setitem(VARIANTS, "compiled", lambda model: model)
    names = ["soft_pico", "soft_pico+compiled"]
    timings = measure_throughput(names, batch_size=1, img_size=32, modes=["inference"], rounds=3, memory=True)
    assert [t.memory_mb is None for t in timings] == [False, True]
    assert throughput_table(timings, memory=True).splitlines()[-1].split("|")[-2].strip() == "not measured"


def test_each_case_has_its_own_best_batch(monkeypatch):
    """Every step takes a second, and there is memory for 20 images in training."""
    batches = {"inference": [], "training": []}

    def step(mode, model, images, labels, dtype):
        batches[mode].append(len(images))
        if mode == "training" and len(images) > 20:
            raise torch.cuda.OutOfMemoryError

    def time_in_turn(steps, rounds, device, bar=None):
        return {name: [1.0 for _ in range(rounds) if not step()] for name, step in steps.items()}

    monkeypatch.setattr(throughput, "_STEPS", {mode: partial(step, mode) for mode in batches})
    monkeypatch.setattr(throughput, "time_in_turn", time_in_turn)
    timings = measure_throughput(["soft_pico"], batch_size="auto", max_batch_size=32, rounds=4)
    assert [(t.mode, t.batch_size, t.median) for t in timings] == [("inference", 32, 32), ("training", 16, 16)]
    assert batches == {
        "inference": [8] * 3 + [16] * 3 + [32] * 7,
        "training": [8] * 3 + [16] * 3 + [32] + [16] * 4,
    }


@pytest.mark.parametrize("batch_size", [3, "auto"])
def test_a_model_without_memory_leaves_the_others_alone(batch_size, monkeypatch):
    def step(mode, model, images, labels, dtype):
        if mode == "training" and model is models["soft_norm_pico"]:
            torch.empty(1 << 50)

    models = {name: create_variant(name) for name in ("soft_norm_pico", "soft_pico")}
    monkeypatch.setattr(throughput, "create_variant", lambda name, size: models[name])
    monkeypatch.setattr(throughput, "_STEPS", {mode: partial(step, mode) for mode in MODES})
    timings = measure_throughput(
        list(models), batch_size=batch_size, max_batch_size=3, img_size=32, rounds=3, memory=True
    )
    assert [(t.mode, t.model, t.batch_size, t.median is None) for t in timings] == [
        (mode, name, 3, (mode, name) == ("training", "soft_norm_pico")) for mode in MODES for name in models
    ]
    rows = [[cell.strip() for cell in line.split("|")[4:-1]] for line in throughput_table(timings, True).splitlines()]
    assert rows[-2] == ["out of memory", "", "", ""]
    # Nothing is a ratio to what was not measured.
    assert rows[-1][2] == ""


def test_a_training_step_leaves_no_gradients():
    """Memory is counted beyond what there was before the step."""
    model = create_variant("soft_pico")
    throughput._STEPS["training"](model, torch.randn(2, 3, 32, 32), torch.tensor([1, 2]), torch.float32)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("soft_pico", {"modes": ["flight"]}, "flight"),
        ("soft_pico", {"rounds": 2}, "rounds must be at least 3, got 2"),
        ("soft_pico", {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ("soft_pico", {"batch_size": "auto", "max_batch_size": 0}, "batch_size must be at least 1, got 0"),
        ("soft_pico", {"batch_size": 2**34, "img_size": 32}, "no memory for 17179869184 images of 32 x 32 pixels; use"),
        ("soft_pic", {}, "no model 'soft_pic'; did you mean"),
        ("mixer_s32_224", {"img_size": 64}, r"mixer_s32_224 fails on images of 64 x 64 pixels \(.*\); leave it out"),
        ("soft_pico+triton", {"img_size": 32}, "backend='triton' runs on a CUDA device"),
    ],
)
def test_bad_arguments(name, kwargs, message):
    with pytest.raises(ValueError, match=message):
        measure_throughput([name], **kwargs)


# Images per second by batch.
SATURATING = {8: 100, 16: 180, 32: 280, 64: 350, 128: 353, 256: 340, 512: 900}


@pytest.mark.parametrize(
    ("rates", "memory", "limit", "tried", "best"),
    [
        (SATURATING, 10**9, 512, [8, 16, 32, 64, 128], 128),
        ({8: 100, 16: 180, 32: 90}, 10**9, 512, [8, 16, 32], 16),
        (SATURATING, 10**9, 32, [8, 16, 32], 32),
        (SATURATING, 10**9, 50, [8, 16, 32], 32),
        (SATURATING, 40, 512, [8, 16, 32, 64], 32),
        (SATURATING, 4, 512, [8], None),
        ({3: 10}, 10**9, 3, [3], 3),
    ],
    ids=["saturation", "loss", "limit", "limit between", "memory", "no memory", "limit below the start"],
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


def test_memory_of_the_failed_step_is_given_back(monkeypatch):
    """Before the cache is emptied nothing may hold on to what the step had, the error included."""
    alive, seen = set(), []

    class Held:
        def __init__(self) -> None:
            alive.add(id(self))

        def __del__(self) -> None:
            alive.discard(id(self))

    def seconds(batch: int) -> float:
        held = Held()
        if batch > 8:
            raise torch.cuda.OutOfMemoryError(f"CUDA out of memory beside {held}.")
        return 1.0

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append(len(alive)))
    assert best_batch_size(seconds, 64) == 8
    assert seen == [0]


@pytest.mark.parametrize(
    ("device", "size", "limit"),
    [("cpu", (448, 448), 64), ("cuda:0", (224, 224), 1024), ("cuda", (448, 448), 256), ("cuda", (32, 32), 1024)],
)
def test_limits(device, size, limit):
    assert default_limit(device, size) == limit
