"""The search for a batch size, with steps whose time is a function of the batch."""

import pytest
import torch

from soft_vit.analysis.batch_search import best_batch_size, default_limit


class FakeGPU:
    """Images per second that saturate, and memory for a number of images; `tried` are the batches asked for."""

    def __init__(self, rates: dict[int, float], memory: int = 10**9) -> None:
        self.rates, self.memory, self.tried = rates, memory, []

    def seconds(self, batch: int) -> float:
        self.tried.append(batch)
        if batch > self.memory:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return batch / self.rates[batch]


SATURATING = {8: 100, 16: 180, 32: 280, 64: 350, 128: 353, 256: 340, 512: 900}


@pytest.mark.parametrize(
    ("rates", "memory", "limit", "tried", "best"),
    [
        (SATURATING, 10**9, 512, [8, 16, 32, 64, 128], 128),
        ({8: 100, 16: 180, 32: 90}, 10**9, 512, [8, 16, 32], 16),
        (SATURATING, 10**9, 32, [8, 16, 32], 32),
        (SATURATING, 10**9, 50, [8, 16, 32], 32),
        (SATURATING, 40, 512, [8, 16, 32, 64], 32),
        ({3: 10}, 10**9, 3, [3], 3),
    ],
    ids=["saturation", "loss", "limit", "limit between", "memory", "limit below the start"],
)
def test_where_the_search_ends(rates, memory, limit, tried, best):
    gpu = FakeGPU(rates, memory)
    assert best_batch_size(gpu.seconds, limit) == best
    assert gpu.tried == tried


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


def test_no_memory_for_the_first():
    assert best_batch_size(FakeGPU(SATURATING, memory=4).seconds, 512) is None


@pytest.mark.parametrize(
    ("device", "size", "limit"),
    [("cpu", (448, 448), 64), ("cuda:0", (224, 224), 1024), ("cuda", (448, 448), 256), ("cuda", (32, 32), 1024)],
)
def test_limits(device, size, limit):
    assert default_limit(device, size) == limit
