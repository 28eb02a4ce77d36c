"""Time contenders in turn, in one process, so that other load on the machine slows them all alike."""

import platform
import random
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeVar

import numpy as np
import timm
import torch
from tqdm import tqdm

Key = TypeVar("Key", bound=Hashable)

# A measurement on a GPU takes at least this long, about 100 times a synchronisation.
MIN_SECONDS_ON_GPU = 5e-3
MAX_REPEATS = 200
# Fewer have no quartiles.
MIN_ROUNDS = 3


def use_threads(count: int | None) -> None:
    """Set the number of CPU threads; None keeps torch's choice."""
    if count is not None:
        require_at_least(1, threads=count)
        torch.set_num_threads(count)


def machine_description(device: str | torch.device = "cpu") -> str:
    """Device, threads and versions, for the head of a table."""
    device = torch.device(device)
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{_cpu_name()}, {torch.get_num_threads()} threads"
    return f"{name}; torch {torch.__version__}, timm {timm.__version__}, Python {platform.python_version()}"


def _cpu_name() -> str:
    """The processor's name from Linux, or else from Python."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else f"{platform.processor() or platform.machine()} CPU"


def numbered(names: Sequence[str]) -> dict[str, str]:
    """Names by distinct labels: a repeated name gets a number, as in `soft_tiny (2)`."""
    counts = Counter()
    labels = {}
    for name in names:
        counts[name] += 1
        labels[name if counts[name] == 1 else f"{name} ({counts[name]})"] = name
    return labels


def time_in_turn(
    steps: Mapping[Key, Callable[[], Any]],
    rounds: int | Callable[[float], int],
    device: str | torch.device,
    bar: tqdm | None = None,
    least_seconds: float = 0.0,
) -> dict[Key, list[float]]:
    """Seconds of each step, one value per round, after a warm-up round.

    Each round runs every step once, in an order of its own, so that no step always finds the caches and allocators as
    the same other step left them. On a GPU, each step first runs once untimed, so that the allocator serves it again,
    and a short step is timed over several calls in a row, which overlap launching with computing as in real use. On a
    CPU, a step shorter than least_seconds is timed over as many calls as fill them.

    rounds: their number, or a function that gives it from the seconds of one round.
    """
    if isinstance(rounds, int):
        require_at_least(MIN_ROUNDS, rounds=rounds)
    repeats = dict.fromkeys(steps, 1)
    on_gpu = torch.device(device).type == "cuda"
    order = random.Random(0)

    def one_round(warm_up: bool = False) -> dict[Key, float]:
        elapsed = {}
        for key in order.sample(list(steps), len(steps)):
            if on_gpu:
                # The first call compiles kernels as well.
                steps[key]()
            elapsed[key] = seconds_of(steps[key], device, repeats[key])
            if warm_up and elapsed[key] < 10 * least_seconds:
                # Much of a short first call is what no later call does.
                elapsed[key] = seconds_of(steps[key], device)
            if bar is not None:
                bar.update()
        return elapsed

    least = MIN_SECONDS_ON_GPU if on_gpu else least_seconds
    first = one_round(warm_up=True)
    if least:
        repeats = {key: min(MAX_REPEATS, 1 + int(least / elapsed)) for key, elapsed in first.items()}
    number = rounds if isinstance(rounds, int) else rounds(sum(first[key] * repeats[key] for key in steps))
    timed = [one_round() for _ in range(number)]
    return {key: [elapsed[key] for elapsed in timed] for key in steps}


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, lower and upper quartile."""
    lower, _, upper = quantiles(values, n=4)
    return median(values), lower, upper


def seconds_of(step: Callable[[], Any], device: str | torch.device, repeats: int = 1) -> float:
    """Seconds of a step, GPU work included: the mean over `repeats` calls in a row."""
    on_gpu = torch.device(device).type == "cuda"
    synchronize = partial(torch.cuda.synchronize, device) if on_gpu else lambda: None
    synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    synchronize()
    return (time.perf_counter() - start) / repeats


def log_log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent of the power law that fits points best, by least squares on logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def require_at_least(minimum: int, **values: int) -> None:
    """Raise ValueError for the first value below minimum."""
    for name, value in values.items():
        if value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {value}.")
