"""Helpers of the operators: precision under autocast, named options, and whether operations are recorded."""

import math
from contextlib import AbstractContextManager, nullcontext
from operator import index
from typing import Literal, SupportsIndex, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

Choice = TypeVar("Choice", bound=str)


def wide_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of x, fp32 where it is bf16 or fp16."""
    return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in fp32 where it is bf16 or fp16, unchanged where it is fp32 or float64."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def bounded(x: Tensor, dtype: torch.dtype, width: int) -> Tensor:
    """Cast x to a dtype, clamped so that width of its values have a finite sum, and a LayerNorm can square them."""
    limit = min(torch.finfo(dtype).max, 1e16) / width
    return x.clamp(-limit, limit).to(dtype)


def full_precision(x: Tensor) -> AbstractContextManager:
    """Return a context without autocast for the device of x."""
    # Entered only under autocast: exporters would carry the region into the graph.
    if x.device.type != "meta" and torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return nullcontext()


def full_precision_backward(x: Tensor) -> AbstractContextManager:
    """Return a context without autocast for a backward on the device of x, entered whether or not autocast is on.

    torch.compile traces a backward inside of the forward's region without autocast, and may run it under autocast.
    """
    return nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)


def check_choice(name: str, value: Choice, choices: tuple[str, ...]) -> Choice:
    """Return value if it is one of choices; otherwise raise a ValueError that lists them."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
    return value


def at_least(name: str, value: int, smallest: int = 1) -> int:
    """Return an option; ValueError unless it is an integer of at least smallest."""
    if not isinstance(value, SupportsIndex) or index(value) < smallest:
        raise ValueError(f"{name} must be an integer of at least {smallest}, got {value!r}.")
    return index(value)


Scaled = Literal["products", "distances", None]
"""Whether products or squared distances of queries and keys have a factor `D^(-1/2)`."""


def rescaled(q: Tensor, k: Tensor, scale: float | None, scaled: Scaled) -> tuple[Tensor, Tensor]:
    """Return q and k `[..., D]` with which the factor `D^(-1/2)` has the effect of scale, positive; None: as they are.

    Without a factor, ValueError unless scale is None.
    """
    if scale is None:
        return q, k
    if scaled is None or not 0 < scale < math.inf:
        requirement = "None, as the formula lacks a factor" if scaled is None else "positive"
        raise ValueError(f"scale must be {requirement}, got {scale}.")
    factor = scale * q.shape[-1] ** 0.5
    if scaled == "products":
        return q * factor, k
    scaled_q = q * factor**0.5
    return scaled_q, scaled_q if k is q else k * factor**0.5


def in_transform() -> bool:
    """Return whether a transform of torch.func (vmap, grad, jvp) or forward-mode differentiation is active.

    Gradients written by hand support neither, so operators are then expressions that torch differentiates.
    """
    return torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0


def is_eager(*tensors: Tensor | None) -> bool:
    """Return whether these are plain tensors, and only autograd records operations on them.

    False under compilers, TorchScript's tracer, dispatch modes (FLOP counters, fake tensors) and transforms, and for
    subclasses of Tensor.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._len_torch_dispatch_stack():
        return False
    return not in_transform() and all(x is None or type(x) in (Tensor, Parameter) for x in tensors)


def in_backward() -> bool:
    """Return whether this runs inside of a backward, as the recomputation of gradient checkpointing does."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
