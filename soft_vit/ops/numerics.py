"""What the operators share: precision under autocast, named options, and what watches an operation while it runs."""

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
    """The dtype of x, fp32 where it is bf16 or fp16."""
    return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype


def at_least_float32(x: Tensor) -> Tensor:
    """X in fp32 where it is bf16 or fp16, unchanged where it is fp32 or float64."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def full_precision(x: Tensor) -> AbstractContextManager:
    """A context without autocast for the device of x."""
    # Entered only where it changes something: exporters would carry an autocast region into the graph.
    if x.device.type != "meta" and torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return nullcontext()


def full_precision_backward(x: Tensor) -> AbstractContextManager:
    """The same for the backward of an operator, entered whether or not autocast is on.

    torch.compile traces a backward where the forward has switched autocast off, and runs it where it may be on.
    """
    return nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)


def check_choice(name: str, value: Choice, choices: tuple[str, ...]) -> Choice:
    """value, if it is one of choices; otherwise a ValueError that lists them."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known; use one of {', '.join(map(repr, choices))}.")
    return value


def takes_triton(backend: Backend | None, device_type: str, unsupported: str | None) -> bool:
    """Whether Triton computes a case; unsupported says why it cannot, as the end of a sentence, or is None.

    backend None takes Triton on a GPU where it can, and never on a CPU. ValueError where `triton` is asked for and
    cannot.
    """
    if backend is None:
        return device_type == "cuda" and unsupported is None
    if check_choice("backend", backend, BACKENDS) == "triton" and unsupported is not None:
        raise ValueError(f"backend='triton' {unsupported}; use backend='eager', or None to choose by the case.")
    return backend == "triton"


# What follows asks torch's private state, because no public function answers. Shortcuts past documented operations,
# and code that looks at values, would otherwise break vmap, and make counters of operations miss some.


def in_function_transform() -> bool:
    """Whether a transform of torch.func (vmap, grad, jvp) is active."""
    level = getattr(getattr(torch._C, "_functorch", None), "maybe_current_level", None)
    return level is not None and level() is not None


def operations_are_watched() -> bool:
    """Whether a dispatch mode is active, such as a counter of operations or fake tensors."""
    depth = getattr(torch._C, "_len_torch_dispatch_stack", None)
    return depth is not None and depth() > 0


def has_memory(x: Tensor) -> bool:
    """False for a batch of gradients (`is_grads_batched`), whose storage cannot be reached."""
    return torch._C._has_storage(x)


def is_dual(x: Tensor) -> bool:
    """Whether x carries a tangent of forward-mode differentiation."""
    # A compiler does not look into it, and has no forward mode.
    return not torch.compiler.is_compiling() and forward_ad.unpack_dual(x).tangent is not None


def forbids_autograd_function(*tensors: Tensor) -> bool:
    """Whether a hand-written gradient must be avoided: traces, torch.func and forward mode cannot hold one."""
    return torch.jit.is_tracing() or in_function_transform() or any(map(is_dual, tensors))


def are_dispatched(*tensors: Tensor | None) -> bool:
    """Whether a compiler, a dispatch mode or a transform sees operations on these tensors."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or operations_are_watched() or in_function_transform():
        return True
    return any(not _is_plain(x) for x in tensors if x is not None)


def _is_plain(x: Tensor) -> bool:
    """Whether x is a tensor of torch's own in memory; subclasses and wrappers define operations of their own."""
    return type(x) in (Tensor, Parameter) and has_memory(x) and not is_dual(x)


def in_backward() -> bool:
    """Whether this runs inside of a backward, as does what gradient checkpointing computes again."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
