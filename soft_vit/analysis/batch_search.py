"""The batch size with which a model computes most images per second."""

from collections.abc import Callable
from functools import partial

import torch

from soft_vit.analysis.memory import unless_out_of_memory

START = 8
# For images of 224 x 224. With 2048, maps in small models have more elements than 32-bit indices can address.
MOST_ON_GPU = 1024
# More does not make a CPU faster, and a step lasts many seconds.
MOST_ON_CPU = 64
LEAST_GAIN = 1.02


def default_limit(device: str | torch.device, size: tuple[int, int]) -> int:
    """The largest batch that is worth a try on a device: `MOST_ON_CPU`, or as many pixels as `MOST_ON_GPU` has."""
    if torch.device(device).type != "cuda":
        return MOST_ON_CPU
    return max(START, min(MOST_ON_GPU, MOST_ON_GPU * 224 * 224 // (size[0] * size[1])))


def best_batch_size(seconds_of_step: Callable[[int], float], limit: int) -> int | None:
    """The batch with most images per second among 8, 16, 32 ... up to limit; a limit below 8 is the one candidate.

    seconds_of_step: the time of a step by its batch. The search ends where twice the batch gains less than 2 %, and
    before the first batch for which a GPU has no memory. None where it has none for the first.
    """
    rates: dict[int, float] = {}
    batch, previous = min(START, limit), 0.0
    while batch <= limit:
        seconds = unless_out_of_memory(partial(seconds_of_step, batch))
        if seconds is None:
            break
        rate = rates[batch] = batch / seconds
        if rate < LEAST_GAIN * previous:
            break
        batch, previous = 2 * batch, rate
    return max(rates, key=rates.__getitem__, default=None)
