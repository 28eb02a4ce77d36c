"""Attentions computed for a few heads at a time, and once more in backward, so that training keeps their inputs alone.

Letters: B batch, H heads, N tokens, D channels of a head.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from soft_vit.ops.numerics import forbids_autograd_function, has_memory

Attend = TypeVar("Attend", bound=Callable[..., Tensor])

# Below it, what is saved is small, and computing it twice takes a larger part of the time.
LEAST_TOKENS = 2048
# Of q, for the heads that are computed together: what is made of it then stays in a core's cache of 1 to 2 MiB.
GROUP_BYTES = 512 << 10


def by_heads(attend: Attend) -> Attend:
    """Make attend work on few heads at a time where N is large, on a CPU, and save no more than its arguments.

    Memory is then that of the arguments and the result, beside what attend makes of a few heads; a training step takes
    a forward more of attend, part of which the cache gives back. On a GPU, small pieces are slow: nothing changes.

    attend treats all heads alike. Its positional arguments of four dimensions, `[B or 1, H, ...]`, are those that heads
    differ in and that may need a gradient, first of all q `[B, H, N, D]`; instead of H there may be a multiple, as in
    the result. In backward it draws the random numbers of forward.
    """

    @wraps(attend)
    def attend_by_heads(*args: Any, **kwargs: Any) -> Tensor:
        tensors = [x for x in args if _has_heads(x)]
        if not computes_parts(*tensors):
            return attend(*args, **kwargs)

        def attend_parts(*parts: Tensor) -> Tensor:
            rest = iter(parts)
            return attend(*(next(rest) if _has_heads(x) else x for x in args), **kwargs)

        return _ByHeads.apply(attend_parts, *tensors)

    return cast(Attend, attend_by_heads)


def computes_parts(q: Tensor, *others: Tensor) -> bool:
    """Whether an attention of tokens q `[B, H, N, D]`, and what else may need a gradient, is computed in parts."""
    if torch.compiler.is_compiling() or forbids_autograd_function(q, *others):
        return False
    return q.device.type == "cpu" and q.shape[2] >= LEAST_TOKENS and q.shape[0] > 0


def _has_heads(x: Any) -> bool:
    return isinstance(x, Tensor) and x.ndim == 4


def _group_size(q: Tensor) -> int:
    """How many heads are computed together."""
    B, _, N, D = q.shape
    return max(1, GROUP_BYTES // (B * N * D * q.element_size()))


def _parts(q: Tensor, tensors: Iterable[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """The tensors of a few heads after the others, as views."""
    return zip(*(x.split(_group_size(q) * (x.shape[1] // q.shape[1]), dim=1) for x in tensors), strict=True)


class _ByHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, attend: Callable[..., Tensor], q: Tensor, *others: Tensor) -> Tensor:
        ctx.save_for_backward(q, *others)
        ctx.attend = attend
        ctx.autocast = {"enabled": torch.is_autocast_enabled("cpu"), "dtype": torch.get_autocast_dtype("cpu")}
        ctx.random_state = torch.get_rng_state()
        if _group_size(q) >= q.shape[1]:
            return attend(q, *others)
        x, first = q, 0
        for parts in _parts(q, (q, *others)):
            part = attend(*parts)
            B, heads, N, channels = part.shape
            if first == 0:
                # In memory as `[B, N, H * D]`, which the projection takes.
                x = part.new_empty(B, N, heads * q.shape[1] // parts[0].shape[1], channels).transpose(1, 2)
            x[:, first : first + heads] = part
            first += heads
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        with torch.random.fork_rng(devices=()):
            torch.set_rng_state(ctx.random_state)
            q = tensors[0]
            # All at once: few heads, what is differentiated again, and batches of gradients, which have no memory.
            if _group_size(q) >= q.shape[1] or torch.is_grad_enabled() or not has_memory(grad):
                return None, *_gradients(ctx, tensors, grad)
            grads = [torch.empty_like(x) if need else None for x, need in zip(tensors, needed, strict=True)]
            written = _parts(q, [x for x in grads if x is not None])
            for (part, *parts), out in zip(_parts(q, (grad, *tensors)), written, strict=True):
                inputs = [x.detach().requires_grad_(need) for x, need in zip(parts, needed, strict=True)]
                found = (x for x in _gradients(ctx, inputs, part) if x is not None)
                for x, gradient in zip(out, found, strict=True):
                    x.copy_(gradient)
            return None, *grads


def _gradients(ctx: Any, inputs: Sequence[Tensor], grad: Tensor) -> list[Tensor | None]:
    """The gradients of those inputs that need one; with grad mode on, they can be differentiated again."""
    create_graph, needed = torch.is_grad_enabled(), ctx.needs_input_grad[1:]
    with torch.enable_grad(), torch.autocast("cpu", **ctx.autocast):
        inputs = [x.view_as(x) for x in inputs]
        results = [ctx.attend(*parts) for parts in _parts(inputs[0], inputs)]
        x = results[0] if len(results) == 1 else torch.cat(results, dim=1)
        wanted = [x for x, need in zip(inputs, needed, strict=True) if need]
        found = iter(torch.autograd.grad(x, wanted, grad, create_graph=create_graph))
        return [next(found) if need else None for need in needed]
