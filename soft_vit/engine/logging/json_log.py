"""The log that programs read: `vis_data/scalars.json`, JSON by the line."""

import json
import math
from typing import Any

import numpy as np
from mmengine.visualization import LocalVisBackend
from torch import Tensor

from soft_vit.registry import VISBACKENDS, register

__all__ = ["JsonLinesBackend"]


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
