"""What observes an operation while it runs: a compiler, a trace, a transform, a counter.

A shortcut past torch's documented operations, or one that looks at values, asks here first.
"""

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter


def in_function_transform() -> bool:
    """Whether a transform of torch.func (vmap, grad, jvp) is active."""
    level = getattr(getattr(torch._C, "_functorch", None), "maybe_current_level", None)
    return level is not None and level() is not None


def operations_are_watched() -> bool:
    """Whether a dispatch mode is active, such as a counter of operations or fake tensors."""
    depth = getattr(torch._C, "_len_torch_dispatch_stack", None)
    return depth is not None and depth() > 0


def is_dual(x: Tensor) -> bool:
    """Whether x carries a tangent of forward-mode differentiation."""
    # A compiler does not look into it, and has no forward mode.
    return not torch.compiler.is_compiling() and forward_ad.unpack_dual(x).tangent is not None


def are_dispatched(*tensors: Tensor | None) -> bool:
    """Whether something between Python and the kernels sees operations on these: a compiler, a mode, a transform."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or operations_are_watched() or in_function_transform():
        return True
    return any(not _is_plain(x) for x in tensors if x is not None)


def _is_plain(x: Tensor) -> bool:
    """Whether x is a tensor of torch's own in memory; subclasses and wrappers define operations of their own."""
    # Batches of gradients (`is_grads_batched`) are such tensors without memory.
    return type(x) in (Tensor, Parameter) and torch._C._has_storage(x) and not is_dual(x)
