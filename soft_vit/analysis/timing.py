"""Times of several contenders, taken in turn in one process, so that other load on the machine slows all alike."""

import random
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from statistics import median, quantiles
from typing import Any, TypeVar

import torch
from tqdm import tqdm

Key = TypeVar("Key", bound=Hashable)

# The least duration of a measurement on a GPU, some 100 times the wait for a synchronisation.
LEAST_SECONDS = 5e-3
MOST_REPEATS = 200


def check_rounds(rounds: int) -> int:
    """Return rounds; ValueError below 3."""
    if rounds < 3:
        raise ValueError(f"rounds={rounds} give no spread; use at least 3.")
    return rounds


def numbered(names: Sequence[str]) -> dict[str, str]:
    """Names by labels to tell them apart: a name that comes again has its number behind it, as in `soft_tiny (2)`."""
    counts = Counter()
    labels = {}
    for name in names:
        counts[name] += 1
        labels[name if counts[name] == 1 else f"{name} ({counts[name]})"] = name
    return labels


def time_in_turn(
    steps: Mapping[Key, Callable[[], Any]], rounds: int, device: str | torch.device, bar: tqdm | None = None
) -> dict[Key, list[float]]:
    """Seconds of each step, `rounds` of them, one of each step at a time, after one of each that is not counted.

    Each round has an order of its own: what a step leaves in caches and allocators is not to meet always the same one.
    On a GPU a short step is taken several times at once, so that launching overlaps with computing as it does in use,
    and once more before, so that the allocator has given it the memory that the others held.
    """
    seconds: dict[Key, list[float]] = {key: [] for key in steps}
    repeats = dict.fromkeys(steps, 1)
    on_gpu = torch.device(device).type == "cuda"
    order = random.Random(0)
    for round_index in range(check_rounds(rounds) + 1):
        for key in order.sample(list(steps), len(steps)):
            if on_gpu:
                # The first call compiles kernels as well.
                steps[key]()
            elapsed = seconds_of(steps[key], device, repeats[key])
            if round_index:
                seconds[key].append(elapsed)
            elif on_gpu:
                repeats[key] = min(MOST_REPEATS, 1 + int(LEAST_SECONDS / elapsed))
            if bar is not None:
                bar.update()
    return seconds


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, lower and upper quartile."""
    lower, _, upper = quantiles(values, n=4)
    return median(values), lower, upper


def seconds_of(step: Callable[[], Any], device: str | torch.device, repeats: int = 1) -> float:
    """Seconds of a step, with what it leaves to a GPU; the mean of `repeats` in a row."""
    on_gpu = torch.device(device).type == "cuda"
    synchronize = partial(torch.cuda.synchronize, device) if on_gpu else lambda: None
    synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    synchronize()
    return (time.perf_counter() - start) / repeats
