"""Gradient checkpointing of layers that keep statistics."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import timm.models
import torch
from torch import nn

from soft_vit.ops.numerics import in_backward


@contextmanager
def statistics_kept(module: nn.Module) -> Iterator[None]:
    """Restore the running statistics of every norm in module at the end of the context."""
    # Not by class: synchronised BatchNorms, and those of others, have the same statistics.
    norms = [norm for norm in module.modules() if norm.training and getattr(norm, "running_mean", None) is not None]
    buffers = [buffer for norm in norms for buffer in norm.buffers(recurse=False)]
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, value in zip(buffers, before, strict=True):
            # Through `data`, because autograd has saved the statistics, but does not use them in training.
            buffer.data.copy_(value)


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """Return `function(*args)`, computed again in backward, which leaves the statistics of norms as they are.

    function: a module, or a method of one.
    """
    if torch.compiler.is_compiling():
        return timm.models.checkpoint(function, *args)
    module: Any = getattr(function, "__self__", function)

    def compute(*args: Any) -> Any:
        if not in_backward():
            return function(*args)
        with statistics_kept(module):
            return function(*args)

    return timm.models.checkpoint(compute, *args)
