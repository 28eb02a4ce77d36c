"""Measure images per second of a test."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from soft_vit.engine.models.timm_model import unwrapped
from soft_vit.registry import HOOKS, register

__all__ = ["ThroughputHook"]


@register(HOOKS)
class ThroughputHook(Hook):
    """Adds images per second, over all processes, of the whole test loop and of the network's forward passes alone.

    The first batch starts the workers and warms up; it counts only if it is the only one. On a GPU, events time the
    forward passes without a synchronisation. A forward pass is a call of the classifier in mode `tensor`, as
    mmpretrain's TimmClassifier makes; hooks on the network itself would be compiled with it.
    """

    # After the hooks that work on a batch.
    priority = "VERY_LOW"

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def before_test_epoch(self, runner: Runner) -> None:
        classifier = unwrapped(runner.model)
        device = next(classifier.parameters()).device
        self._mark, self._between = _event_clock() if device.type == "cuda" else _wall_clock()
        self._images: list[int] = []
        self._passes: list[tuple[Any, Any]] = []
        self._ends = [time.perf_counter()]
        self._handles = [
            classifier.register_forward_pre_hook(self._begin_pass, with_kwargs=True),
            classifier.register_forward_hook(self._end_pass, with_kwargs=True),
        ]

    def _begin_pass(self, classifier: nn.Module, args: tuple, kwargs: dict) -> None:
        if kwargs.get("mode", "tensor") == "tensor":
            self._start = self._mark()

    def _end_pass(self, classifier: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        if kwargs.get("mode", "tensor") == "tensor":
            self._passes.append((self._start, self._mark()))

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: list | None = None
    ) -> None:
        # The metric has moved the predictions to the CPU, so the GPU has finished this batch.
        self._images.append(len(outputs))
        self._ends.append(time.perf_counter())

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        for handle in self._handles:
            handle.remove()
        metrics.update(self.rates())

    def rates(self) -> dict[str, float]:
        """Return the finite ones of `images_per_second/loop` and `images_per_second/forward` of the last test."""
        first = min(1, len(self._images) - 1)
        images = sum(self._images[first:])
        # A model without such a mode gives NaN.
        forward = sum(self._between(start, end) for start, end in self._passes[first:]) or float("nan")
        rates = torch.tensor([images / (self._ends[-1] - self._ends[first]), images / forward], dtype=torch.float64)
        all_reduce(rates)
        named = zip(("images_per_second/loop", "images_per_second/forward"), rates.tolist(), strict=True)
        return {name: rate for name, rate in named if math.isfinite(rate)}


def _wall_clock() -> tuple[Callable[[], float], Callable[[float, float], float]]:
    return time.perf_counter, lambda start, end: end - start


def _event_clock() -> tuple[Callable[[], torch.cuda.Event], Callable[[torch.cuda.Event, torch.cuda.Event], float]]:
    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        return start.elapsed_time(end) / 1000

    return mark, between
