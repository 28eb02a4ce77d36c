"""Log progress lines and JSON lines, and bound the history of logged numbers."""

import json
import math
from typing import Any

import numpy as np
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.runner import LogProcessor, Runner
from mmengine.visualization import LocalVisBackend
from torch import Tensor

from soft_vit.registry import HOOKS, LOG_PROCESSORS, VISBACKENDS, register


@register(LOG_PROCESSORS)
class ProgressLogProcessor(LogProcessor):
    """MMEngine's LogProcessor with images per second over all processes."""

    def get_log_after_iter(self, runner: Runner, batch_idx: int, mode: str) -> tuple[dict, str]:
        tag, line = super().get_log_after_iter(runner, batch_idx, mode)
        prefix = f"{mode}/" if self.log_with_hierarchy else ""
        seconds, waiting = tag.get(f"{prefix}time"), tag.get(f"{prefix}data_time")
        if not seconds:
            return tag, line
        batch_size = self._get_cur_loop(runner, mode).dataloader.batch_sampler.batch_size
        tag[f"{prefix}images_per_second"] = rate = batch_size * get_world_size() / seconds
        time_shown = f"data_time: {waiting:.{self.num_digits}f}  "
        return tag, line.replace(time_shown, f"{time_shown}images/s: {rate:.1f}  ", 1)


@register(VISBACKENDS)
class JsonLinesBackend(LocalVisBackend):
    """MMEngine's LocalVisBackend with valid JSON: null for a number that is not finite.

    Lines of scalars have a `mode`, `train` or `val`; `step` is the iteration in `train`, and in `val`, too, if a
    run counts iterations, else the epoch.
    """

    def add_scalars(self, scalar_dict: dict, step: int = 0, file_path: str | None = None, **kwargs: Any) -> None:
        # MMEngine logs the iteration in training only.
        mode = "train" if "iter" in scalar_dict else "val"
        super().add_scalars({"mode": mode, **scalar_dict}, step, file_path, **kwargs)

    def _dump(self, value_dict: dict, file_path: str, file_format: str) -> None:
        values = {name: _plain(value) for name, value in value_dict.items()}
        with open(file_path, "a") as file:
            file.write(json.dumps(values, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    """Convert numbers of any library, and lists of them, to Python's; None replaces those that are not finite."""
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_INTERVAL = 1000


@register(HOOKS)
class ShortHistoryHook(Hook):
    """Limits MMEngine's history of each logged number to about its last `length` values.

    MMEngine copies the history with each value and saves it in each checkpoint, which takes 1.5 ms for each number and
    step by the end of 300 epochs of ImageNet. Logs and TensorBoard stay complete. A window of the LogProcessor is at
    most `length`.
    """

    def __init__(self, length: int = 10_000) -> None:
        self.length = length

    def before_train(self, runner: Runner) -> None:
        for history in runner.message_hub.log_scalars.values():
            history.max_length = self.length

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        if self.every_n_train_iters(runner, _INTERVAL):
            self.before_train(runner)
