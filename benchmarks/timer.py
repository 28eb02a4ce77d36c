"""Time contenders in turn, in one process, so that other load on the machine slows all of them equally."""

import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.memory import unless_out_of_memory
from soft_vit.probe.cost import peak_memory, seconds_of

Key = TypeVar("Key", bound=Hashable)
Step = Callable[[], Any]
Device = str | torch.device

MODES = ("inference", "training")

# A measurement on a GPU takes at least this long, about 100 times a synchronisation.
MIN_SECONDS_ON_GPU = 5e-3
MAX_REPEATS = 200
# Quartiles need as many.
MIN_ROUNDS = 3


class Spread(NamedTuple):
    """Median and quartiles."""

    median: float
    lower: float
    upper: float

    def cells(self, form: str) -> list[str]:
        """Return the median and the range of the quartiles, with numbers in a format."""
        return [f"{self.median:{form}}", f"{self.lower:{form}} - {self.upper:{form}}"]


@dataclass(frozen=True)
class Timing:
    """One target in one mode at one size: seconds of a call in each round, and bytes at the peak.

    size: images of a batch, or tokens. seconds: empty if memory ran out. memory: the peak above the bytes before the
    call; None if it was not measured. flops: multiply-adds of the forward of one image; 0 if not counted. peak: those
    of a matrix product a second, in the same rounds.
    """

    target: Any
    mode: str
    size: int
    seconds: Sequence[float] = ()
    memory: int | None = None
    flops: int = 0
    peak: float = math.inf

    @property
    def time(self) -> Spread | None:
        """Seconds of a call; None if it was not timed."""
        return spread(self.seconds) if self.seconds else None

    @property
    def rate(self) -> Spread | None:
        """Images or tokens per second."""
        return spread([self.size / seconds for seconds in self.seconds]) if self.seconds else None

    @property
    def of_peak(self) -> float | None:
        """FLOPs a second over those of the product; a training step counts as three forwards, recomputed or not."""
        forwards = 3 if self.mode == "training" else 1
        return self.rate and forwards * self.flops * self.rate.median / self.peak

    @property
    def megabytes(self) -> float | None:
        """The peak in units of 2^20 bytes."""
        return None if self.memory is None else self.memory / 2**20


def measure(
    steps: Mapping[Key, Step], mode: str, size: int, rounds: int, device: Device, counted: Collection[Key] = ()
) -> list[Timing]:
    """Time steps in turn, each the second time it runs in a row. size: of all timings.

    counted: names of the steps whose peak memory is measured.
    A step that runs out of memory does not end the measurement of the others.
    """
    able = {name: step for name, step in steps.items() if unless_out_of_memory(lambda step=step: (step(),))}
    seconds = time_in_turn(able, rounds, device, desc=mode, clock=second_of_two)
    peaks = {name: peak_memory(able[name], device) for name in counted if name in able}
    return [Timing(name, mode, size, seconds.get(name, ()), peaks.get(name)) for name in steps]


def time_in_turn(
    steps: Mapping[Key, Step],
    rounds: int | Callable[[float], int],
    device: Device,
    *,
    desc: str = "",
    min_seconds: float = 0.0,
    clock: Callable[..., float] = seconds_of,
) -> dict[Key, list[float]]:
    """Return the seconds of each step, one value per round, after a warm-up round; desc names the progress bar.

    Each round runs every step once, in a new random order, so that no step always runs in the caches and allocators
    that the same other step left. On a GPU, each step first runs once untimed, which fills the allocator's cache, and
    a short step is timed over several calls in a row, which overlap launching with computing as in real use. On a CPU,
    a step shorter than min_seconds is repeated for about that long.

    rounds: their number, or a function that gives it from the seconds of one round. clock: times a step instead of
    `seconds_of`, with its arguments.
    """
    if isinstance(rounds, int) and rounds < MIN_ROUNDS:
        raise ValueError(f"rounds must be at least {MIN_ROUNDS}, got {rounds}.")
    repeats = dict.fromkeys(steps, 1)
    on_gpu = torch.device(device).type == "cuda"
    order = random.Random(0)

    def one_round(warm_up: bool = False) -> dict[Key, float]:
        elapsed = {}
        for key in order.sample(list(steps), len(steps)):
            if on_gpu:
                # The first call compiles kernels as well.
                steps[key]()
            elapsed[key] = clock(steps[key], device, repeats[key])
            if warm_up and elapsed[key] < 10 * min_seconds:
                # The first call does work that later calls do not repeat, a large part of a short call.
                elapsed[key] = clock(steps[key], device, 1)
            bar.update()
        return elapsed

    with tqdm(desc=desc, unit="call", leave=False) as bar:
        least = MIN_SECONDS_ON_GPU if on_gpu else min_seconds
        first = one_round(warm_up=True)
        if least:
            repeats = {key: min(MAX_REPEATS, 1 + int(least / elapsed)) for key, elapsed in first.items()}
        number = rounds if isinstance(rounds, int) else rounds(sum(first[key] * repeats[key] for key in steps))
        bar.total = (number + 1) * len(steps)
        timed = [one_round() for _ in range(number)]
    return {key: [elapsed[key] for elapsed in timed] for key in steps}


def second_of_two(step: Step, device: Device, repeats: int = 1) -> float:
    """Return the seconds of a step just after the same step, and not after another one, whose data fills the caches."""
    step()
    return seconds_of(step, device, repeats)


def spread(values: Sequence[float]) -> Spread:
    """Return the median, the lower and the upper quartile of at least two values."""
    lower, _, upper = quantiles(values, n=4)
    return Spread(median(values), lower, upper)


def log_log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exponent of the power law that fits points best, by least squares on logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def numbered(names: Sequence[str]) -> dict[str, str]:
    """Return names by distinct labels: a repeated name gets a number, as in `soft_tiny (2)`."""
    counts, labels = Counter(), {}
    for name in names:
        counts[name] += 1
        labels[name if counts[name] == 1 else f"{name} ({counts[name]})"] = name
    return labels
