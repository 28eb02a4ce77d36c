"""What a run logs: its progress line, a JSON line for each record, and a history of bounded length."""

import json
import math
import sys
from typing import Any

import numpy as np
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.runner import LogProcessor, Runner
from mmengine.visualization import LocalVisBackend
from torch import Tensor

from soft_vit.registry import HOOKS, LOG_PROCESSORS, VISBACKENDS, register

__all__ = ["JsonLinesBackend", "ProgressLogProcessor", "ShortHistoryHook", "peak_memory"]

try:
    import resource
except ImportError:  # Windows
    resource = None


@register(LOG_PROCESSORS)
class ProgressLogProcessor(LogProcessor):
    """MMEngine's LogProcessor with images per second, of all processes together, and peak memory without a GPU as well.

    Memory is in MiB: what the GPU allocated at most, or the most that this process had in memory, workers not counted.
    """

    def get_log_after_iter(self, runner: Runner, batch_idx: int, mode: str) -> tuple[dict, str]:
        tag, line = super().get_log_after_iter(runner, batch_idx, mode)
        prefix = f"{mode}/" if self.log_with_hierarchy else ""
        seconds, waiting = tag.get(f"{prefix}time"), tag.get(f"{prefix}data_time")
        if not seconds:
            return tag, line
        batch_size = self._get_cur_loop(runner, mode).dataloader.batch_sampler.batch_size
        rate = batch_size * get_world_size() / seconds
        tag[f"{prefix}images_per_second"] = rate
        shown = f"images/s: {rate:.1f}  "
        if "memory" not in tag and (memory := peak_memory()):
            tag["memory"] = memory
            shown += f"memory: {memory}  "
        time_shown = f"data_time: {waiting:.{self.num_digits}f}  "
        return tag, line.replace(time_shown, time_shown + shown, 1)


def peak_memory() -> int:
    """The most memory that this process has had, in MiB; 0 where the system does not tell."""
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak >> (20 if sys.platform == "darwin" else 10)


@register(VISBACKENDS)
class JsonLinesBackend(LocalVisBackend):
    """MMEngine's LocalVisBackend with lines that every JSON reader takes: null for a number that is not finite.

    Lines of scalars have a `mode`, `train` or `val`. `step` is the iteration in the first, the epoch in the second.
    """

    def add_scalars(self, scalar_dict: dict, step: int = 0, file_path: str | None = None, **kwargs: Any) -> None:
        # MMEngine notes the iteration with what is logged during training alone.
        mode = "train" if "iter" in scalar_dict else "val"
        super().add_scalars({"mode": mode, **scalar_dict}, step, file_path, **kwargs)

    def _dump(self, value_dict: dict, file_path: str, file_format: str) -> None:
        values = {name: _plain(value) for name, value in value_dict.items()}
        with open(file_path, "a") as file:
            file.write(json.dumps(values, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    """A number of any library as one of Python's, None if it is not finite; lists of them likewise."""
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_INTERVAL = 1000


@register(HOOKS)
class ShortHistoryHook(Hook):
    """Lets MMEngine remember the last `length` values, at least, of each number that it logs.

    It copies the whole history with every value that it adds, and writes it into every checkpoint: by the end of 300
    epochs of ImageNet 1.5 ms for each number in each step. Logs and TensorBoard have their own record; a window of the
    LogProcessor longer than `length` is cut.
    """

    def __init__(self, length: int = 10_000) -> None:
        self.length = length

    def before_train(self, runner: Runner) -> None:
        for history in runner.message_hub.log_scalars.values():
            history.max_length = self.length

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        if self.every_n_train_iters(runner, _INTERVAL):
            self.before_train(runner)
