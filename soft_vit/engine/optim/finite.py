"""Refusing to write what no run could go on from."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from soft_vit.engine.errors import UserError

__all__ = ["require_finite"]

PARTS = ("state_dict", "ema_state_dict", "optimizer")


def require_finite(checkpoint: dict[str, Any]) -> None:
    """Raise UserError (a ValueError) when a weight or a state of the optimizer in a checkpoint is infinite or NaN."""
    for part in PARTS:
        for name, value in _tensors(checkpoint.get(part), part):
            if value.is_floating_point() and not value.isfinite().all():
                raise UserError(
                    f"{name} is not finite, so no checkpoint is written; the newest one is from before: start from its "
                    "weights (load_from) with a lower learning rate, or resume in float32."
                )


def _tensors(content: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(content, Tensor):
        yield name, content
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from _tensors(value, f"{name}.{key}")
