"""Functions computed part by part, and once more in backward, so that training keeps their arguments alone.

Letters: B batch, H heads, N tokens, D channels of a head.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from soft_vit.ops.numerics import forbids_autograd_function, full_precision_backward, has_memory

# Below it, what is saved is small, and computing it twice takes a larger part of the time.
LEAST_TOKENS = 2048

Arguments = Sequence[Tensor | None]
Results = tuple[Tensor, ...]


class Part(NamedTuple):
    """A part of a function of some arguments."""

    cut: Callable[[Arguments], Arguments]
    """The views of the arguments, or of tensors of their shapes, that it reads; None stays None."""
    compute: Callable[..., Results]
    """What it makes of them."""


def computes_parts(q: Tensor, *others: Tensor) -> bool:
    """Whether an attention is computed in parts: of many tokens q `[B, H, N, D]`, on a CPU, outside of traces.

    others: what else may need a gradient. On a GPU, small pieces are slow.
    """
    if torch.compiler.is_compiling() or forbids_autograd_function(q, *others):
        return False
    return q.device.type == "cpu" and q.shape[2] >= LEAST_TOKENS and q.shape[0] > 0


def in_parts(parts: Sequence[Part], dim: int | None, *args: Tensor | None) -> Results:
    """The results of all parts: summed for dim None, and otherwise the one result `[B, H, N, D]`, joined along dim.

    With a dim, parts cut the first argument along it, one after the other, and each result is as long as its cut, or a
    multiple. The cuts of other arguments may overlap. Memory is that of the arguments, their gradients and the result,
    beside what is made of a part; a training step takes a forward more. Gradients reach args and nothing else that
    parts compute with. Backward draws the random numbers of forward.
    """
    return _InParts.apply(parts, dim, *args)


def all_at_once(parts: Sequence[Part], dim: int | None, *args: Tensor | None) -> Results:
    """`in_parts` as one differentiable expression, which saves what all parts make."""
    results = [part.compute(*part.cut(args)) for part in parts]
    if dim is None or len(results) == 1:
        return _summed(results)
    return (torch.cat([x for (x,) in results], dim=dim),)


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Sequence[Part], dim: int | None, *args: Tensor | None) -> Results:
        ctx.save_for_backward(*args)
        ctx.parts, ctx.dim = parts, dim
        ctx.autocast = {"enabled": torch.is_autocast_enabled("cpu"), "dtype": torch.get_autocast_dtype("cpu")}
        ctx.random_state = torch.get_rng_state()
        if dim is None or len(parts) == 1:
            return _summed(part.compute(*part.cut(args)) for part in parts)
        whole: Tensor | None = None
        place = 0
        for part in parts:
            views = part.cut(args)
            (x,) = part.compute(*views)
            if whole is None:
                whole = _empty_result(x, dim, x.shape[dim] * _length(args, dim) // _length(views, dim))
            whole.narrow(dim, place, x.shape[dim]).copy_(x)
            place += x.shape[dim]
        assert whole is not None
        return (whole,)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        args, needed, dim = ctx.saved_tensors, ctx.needs_input_grad[2:], ctx.dim
        with torch.random.fork_rng(devices=()):
            torch.set_rng_state(ctx.random_state)
            # All at once: what is differentiated again, and batches of gradients, which have no memory.
            if len(ctx.parts) == 1 or torch.is_grad_enabled() or not all(map(has_memory, grads)):
                return None, None, *_gradients(ctx, partial(all_at_once, ctx.parts, dim), args, grads)
            found = [torch.zeros_like(x) if need else None for x, need in zip(args, needed, strict=True)]
            weights, place = grads, 0
            for part in ctx.parts:
                views = part.cut(args)
                if dim is not None:
                    length = _length(views, dim) * _length(grads, dim) // _length(args, dim)
                    weights = (grads[0].narrow(dim, place, length),)
                    place += length
                # Without a name, which would keep them in memory while the next part is computed.
                pairs = zip(part.cut(found), _gradients(ctx, part.compute, views, weights), strict=True)
                for x, gradient in pairs:
                    if x is not None and gradient is not None:
                        x += gradient
            return None, None, *found


def _length(args: Arguments, dim: int) -> int:
    """The length of the first tensor along dim."""
    assert args[0] is not None
    return args[0].shape[dim]


def _empty_result(x: Tensor, dim: int, length: int) -> Tensor:
    """`[B, H, N, D]` of this length along dim, in memory as `[B, N, H * D]`, which a projection takes."""
    B, H, N, D = (length if i == dim else side for i, side in enumerate(x.shape))
    return x.new_empty(B, N, H, D).transpose(1, 2)


def _summed(results: Iterable[Results]) -> Results:
    """Entry by entry."""
    return reduce(lambda total, part: tuple(x + y for x, y in zip(total, part, strict=True)), results)


def _gradients(
    ctx: Any, compute: Callable[..., Results], args: Arguments, grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradients of those arguments that need one; with grad mode on, they can be differentiated again."""
    create_graph, needed = torch.is_grad_enabled(), ctx.needs_input_grad[2:]
    with torch.enable_grad():
        # Views, so that gradients are those of these arguments and not of what they were made of.
        inputs = [x if x is None else x.view_as(x) if create_graph else x.detach() for x in args]
        wanted = [x for x, need in zip(inputs, needed, strict=True) if need and x is not None]
        if not create_graph:
            for x in wanted:
                x.requires_grad_()
        with torch.autocast("cpu", **ctx.autocast):
            results = compute(*inputs)
        pairs = [pair for pair in zip(results, grads, strict=True) if pair[0].requires_grad]
        differentiable, weights = zip(*pairs, strict=True)
        with full_precision_backward(differentiable[0]):
            found = torch.autograd.grad(differentiable, wanted, weights, create_graph=create_graph, allow_unused=True)
        rest = iter(found)
        return [next(rest) if need else None for need in needed]
