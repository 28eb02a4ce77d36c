"""Functions computed part by part, and once more in backward, so that training keeps their arguments alone.

Letters: B batch, H heads, N tokens, D channels of a head.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from soft_vit.ops.numerics import forbids_autograd_function, full_precision_backward, has_memory, wide_dtype

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


def in_parts(parts: Sequence[Part], dim: int | None, *args: Tensor | None, before: Sequence[Part] = ()) -> Results:
    """The results of all parts: summed for dim None, and otherwise the one result `[B, H, N, D]`, joined along dim.

    With a dim, parts cut the first argument along it, one after the other, and each result is as long as its cut, or a
    multiple. The cuts of other arguments may overlap. Memory is that of the arguments, their gradients and the result,
    beside what is made of a part; a training step takes a forward more. Gradients reach args and nothing else that
    parts compute with. Backward draws the random numbers of forward.

    before: parts of args alone, which draw no random numbers; their summed results follow args in what parts cut. In
    one call, both add to the same gradients of args; in two, each would make its own.
    """
    return _InParts.apply(before, parts, dim, *args)


def all_at_once(parts: Sequence[Part], dim: int | None, *args: Tensor | None, before: Sequence[Part] = ()) -> Results:
    """`in_parts` as one differentiable expression, which saves what all parts make."""
    args = (*args, *_summed_parts(before, args))
    if dim is None or len(parts) == 1:
        return _summed_parts(parts, args)
    return (torch.cat([part.compute(*part.cut(args))[0] for part in parts], dim=dim),)


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, before: Sequence[Part], parts: Sequence[Part], dim: int | None, *args: Tensor | None
    ) -> Results:
        ctx.before, ctx.parts, ctx.dim, ctx.num_args = before, parts, dim, len(args)
        ctx.autocast = {"enabled": torch.is_autocast_enabled("cpu"), "dtype": torch.get_autocast_dtype("cpu")}
        ctx.random_state = torch.get_rng_state()
        args = (*args, *_summed_parts(before, args))
        ctx.save_for_backward(*args)
        if dim is None or len(parts) == 1:
            return _summed_parts(parts, args)
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
        args, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]
        with torch.random.fork_rng(devices=()):
            torch.set_rng_state(ctx.random_state)
            # All at once: what is differentiated again, and batches of gradients, which have no memory.
            if len(ctx.parts) == 1 or torch.is_grad_enabled() or not all(map(has_memory, grads)):
                compute = partial(all_at_once, ctx.parts, ctx.dim, before=ctx.before)
                return None, None, None, *_gradients(ctx, compute, args[: ctx.num_args], needed, grads)
            needed = (*needed, *[True] * (len(args) - ctx.num_args))
            found: list[Tensor | None] = [None] * len(args)
            for i, view in enumerate(ctx.parts[0].cut(args)):
                if needed[i]:
                    # What all parts read has a gradient of many summands.
                    dtype = wide_dtype(view) if view is args[i] else args[i].dtype
                    found[i] = torch.zeros_like(args[i], dtype=dtype)
            _add_gradients(ctx, ctx.parts, ctx.dim, args, found, grads)
            found, sums = found[: ctx.num_args], found[ctx.num_args :]
            _add_gradients(ctx, ctx.before, None, args[: ctx.num_args], found, sums)
            found = [x if x is None else x.to(args[i].dtype) for i, x in enumerate(found)]
            return None, None, None, *found


def _add_gradients(
    ctx: Any, parts: Sequence[Part], dim: int | None, args: Arguments, found: Arguments, grads: Arguments
) -> None:
    """Add to found, where it is not None, the gradients of args that those of the results give."""
    needed, weights, place = [x is not None for x in found], grads, 0
    for part in parts:
        views = part.cut(args)
        if dim is not None:
            length = _length(views, dim) * _length(grads, dim) // _length(args, dim)
            assert grads[0] is not None
            weights = (grads[0].narrow(dim, place, length),)
            place += length
        # Without a name, which would keep them in memory while the next part is computed.
        pairs = zip(part.cut(found), _gradients(ctx, part.compute, views, needed, weights), strict=True)
        for x, gradient in pairs:
            if x is not None and gradient is not None:
                x += gradient


def _length(args: Arguments, dim: int) -> int:
    """The length of the first tensor along dim."""
    assert args[0] is not None
    return args[0].shape[dim]


def _empty_result(x: Tensor, dim: int, length: int) -> Tensor:
    """`[B, H, N, D]` of this length along dim, in memory as `[B, N, H * D]`, which a projection takes."""
    B, H, N, D = (length if i == dim else side for i, side in enumerate(x.shape))
    return x.new_empty(B, N, H, D).transpose(1, 2)


def _summed_parts(parts: Sequence[Part], args: Arguments) -> Results:
    """The results of all parts, summed entry by entry; none for no parts."""
    total: Results = ()
    for part in parts:
        results = part.compute(*part.cut(args))
        total = tuple(x + y for x, y in zip(total, results, strict=True)) if total else results
    return total


def _gradients(
    ctx: Any, compute: Callable[..., Results], args: Arguments, needed: Sequence[bool], grads: Arguments
) -> list[Tensor | None]:
    """The gradients of the needed arguments; with grad mode on, they can be differentiated again."""
    create_graph = torch.is_grad_enabled()
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
        if not pairs:
            return [None] * len(args)
        differentiable, weights = zip(*pairs, strict=True)
        with full_precision_backward(differentiable[0]):
            found = torch.autograd.grad(differentiable, wanted, weights, create_graph=create_graph, allow_unused=True)
        rest = iter(found)
        return [next(rest) if need else None for need in needed]
