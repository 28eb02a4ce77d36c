"""Measure images per second of a test."""

import time
from typing import Any

import torch
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.runner import Runner

from soft_vit.registry import HOOKS, register


@register(HOOKS)
class ThroughputHook(Hook):
    """Adds `images_per_second` of the test loop, over all processes, to the metrics of a test.

    The first batch starts the workers and warms up; it counts only if it is the only one. Speed of models alone is
    measured by `benchmarks`.
    """

    # After the hooks that work on a batch.
    priority = "VERY_LOW"

    def before_test_epoch(self, runner: Runner) -> None:
        self._images: list[int] = []
        self._ends = [time.perf_counter()]

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        # The metric has moved the predictions to the CPU, so the GPU has finished this batch.
        self._images.append(len(outputs))
        self._ends.append(time.perf_counter())

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        first = min(1, len(self._images) - 1)
        rate = torch.tensor(sum(self._images[first:]) / (self._ends[-1] - self._ends[first]))
        all_reduce(rate)
        metrics["images_per_second"] = rate.item()
