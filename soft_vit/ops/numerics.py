"""What the operators share: precision under autocast, named options, and whether operations are recorded."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

Backend = Literal["eager", "triton"]
Choice = TypeVar("Choice", bound=str)

BACKENDS = get_args(Backend)


def wide_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of x, fp32 where it is bf16 or fp16."""
    return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in fp32 where it is bf16 or fp16, unchanged where it is fp32 or float64."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def full_precision(x: Tensor) -> AbstractContextManager:
    """Return a context without autocast for the device of x."""
    # Entered only where it changes something: exporters would carry an autocast region into the graph.
    if x.device.type != "meta" and torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return nullcontext()


def full_precision_backward(x: Tensor) -> AbstractContextManager:
    """Return the same context for the backward of an operator, entered whether or not autocast is on.

    torch.compile traces a backward where the forward has switched autocast off, and runs it where it may be on.
    """
    return nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)


def check_choice(name: str, value: Choice, choices: tuple[str, ...]) -> Choice:
    """Return value if it is one of choices; otherwise raise a ValueError that lists them."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
    return value


def use_triton(backend: Backend | None, device_type: str, unsupported: str | None) -> bool:
    """Return whether Triton computes a case; unsupported is the reason why it cannot, as the end of a sentence.

    backend None takes Triton on a GPU where it can, and never on a CPU. ValueError where `triton` is asked for and
    cannot.
    """
    if backend is None:
        return device_type == "cuda" and unsupported is None
    if check_choice("backend", backend, BACKENDS) == "triton" and unsupported is not None:
        raise ValueError(f"backend='triton' {unsupported}; use backend='eager', or None to choose by the case.")
    return backend == "triton"


def in_transform() -> bool:
    """Return whether a transform of torch.func (vmap, grad, jvp) or forward-mode differentiation is active.

    Gradients by hand support neither: there, operators are expressions that torch differentiates.
    """
    return torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0


def is_eager(*tensors: Tensor | None) -> bool:
    """Return whether these are plain tensors, and nothing but autograd sees operations on them.

    Others are compilers, dispatch modes (counters of FLOPs, fake tensors), transforms, and subclasses of Tensor.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or in_transform():
        return False
    return all(x is None or type(x) in (Tensor, Parameter) for x in tensors)


def in_backward() -> bool:
    """Return whether this runs inside of a backward, as gradient checkpointing does when it computes again."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
