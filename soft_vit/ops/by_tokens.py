"""Sums over tokens and functions of each token, computed for a few tokens at a time, and once more in backward.

Linear attentions consist of the two: a state, which sums over keys and values, and what each query reads from it.

Letters: B batch, H heads, N tokens, D channels of a head.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from soft_vit.ops.by_heads import computes_parts
from soft_vit.ops.numerics import full_precision, full_precision_backward, has_memory

# Of the first tensor, for the tokens that are computed together: what is made of it then stays in a core's cache.
CHUNK_BYTES = 256 << 10

Tokens = tuple[Tensor | None, ...]
"""Tensors `[B or 1, H or 1, N, ...]`, first of all one `[B, H, N, D]`; None for what is absent, such as a mask."""
Sums = tuple[Tensor, ...]


def sum_over_tokens(function: Callable[..., Sums], tokens: Tokens, shared: Sums = ()) -> Sums:
    """`function(*tokens, *shared)`, whose results are sums over the tokens, without autocast.

    Where N is large, on a CPU, it takes a few tokens after the others, saves its arguments alone for backward, and
    computes them once more there. On a GPU, small pieces are slow: nothing changes. Gradients reach tokens and shared,
    and nothing else that function is made of; it draws no random numbers.
    """
    return _apply(function, True, tokens, shared)


def map_tokens(function: Callable[..., Tensor], tokens: Tokens, shared: Sums = ()) -> Tensor:
    """`function(*tokens, *shared)`, `[B, H, N, ...]`, where each token of the result is made of this token of tokens.

    Computed as by `sum_over_tokens`.
    """
    return _apply(lambda *args: (function(*args),), False, tokens, shared)[0]


@torch.no_grad()
def max_over_tokens(function: Callable[..., Tensor], tokens: Tokens, shared: Sums = ()) -> Tensor:
    """The largest of `function(*tokens, *shared)` `[B, H, N, ...]` over the tokens, `[B, H, 1, ...]`; no gradient."""
    with full_precision(_first(tokens)):
        chunks = _chunks(tokens) if computes_parts(_first(tokens)) else [tokens]
        found = [function(*chunk, *shared).amax(2, keepdim=True) for chunk in chunks]
        return found[0] if len(found) == 1 else torch.cat(found, dim=2).amax(2, keepdim=True)


def _apply(function: Callable[..., Sums], is_sum: bool, tokens: Tokens, shared: Sums) -> Sums:
    if computes_parts(_first(tokens), *(x for x in (*tokens, *shared) if x is not None)):
        return _ByTokens.apply(function, is_sum, len(tokens), *tokens, *shared)
    with full_precision(_first(tokens)):
        return function(*tokens, *shared)


def _first(tokens: Tokens) -> Tensor:
    assert tokens[0] is not None
    return tokens[0]


def _chunks(tokens: Tokens) -> Iterator[Tokens]:
    """A few tokens after the others, as views."""
    first = _first(tokens)
    B, H, N, D = first.shape
    length = max(1, CHUNK_BYTES // (B * H * D * first.element_size()))
    for start in range(0, N, length):
        yield tuple(None if x is None else x[:, :, start : start + length] for x in tokens)


class _ByTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Sums], is_sum: bool, count: int, *args: Tensor | None) -> Sums:
        ctx.save_for_backward(*args)
        ctx.function, ctx.is_sum, ctx.count = function, is_sum, count
        tokens, shared = args[:count], args[count:]
        with full_precision(_first(tokens)):
            parts = (function(*chunk, *shared) for chunk in _chunks(tokens))
            if not is_sum:
                return (_joined((part[0] for part in parts), _first(tokens).shape[2]),)
            total: Sums = ()
            for part in parts:
                total = _sum(total, part)
            return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        args, count, needed = ctx.saved_tensors, ctx.count, ctx.needs_input_grad[3:]
        with full_precision_backward(_first(args)):
            # What is differentiated again, and batches of gradients, which have no memory: all at once.
            if torch.is_grad_enabled() or not all(map(has_memory, grads)):
                return None, None, None, *_gradients(ctx, args, grads)
            found = [
                torch.empty_like(x) if need else None for x, need in zip(args[:count], needed[:count], strict=True)
            ]
            of_shared: tuple[Tensor | None, ...] = ()
            for chunk in _chunks((*args[:count], *found, *(() if ctx.is_sum else grads))):
                tokens, written, weights = chunk[:count], chunk[count : 2 * count], chunk[2 * count :]
                own = _gradients(ctx, (*tokens, *args[count:]), grads if ctx.is_sum else weights)
                for x, gradient in zip(written, own[:count], strict=True):
                    if x is not None and gradient is not None:
                        x.copy_(gradient)
                of_shared = _sum(of_shared, own[count:])
            return None, None, None, *found, *of_shared


def _joined(parts: Iterator[Tensor], num_tokens: int) -> Tensor:
    """Tokens `[B, H, N, D]` from a few after the others, in memory as `[B, N, H * D]`, which a projection takes."""
    first = next(parts)
    B, H, length, D = first.shape
    x = first.new_empty(B, num_tokens, H, D).transpose(1, 2)
    x[:, :, :length] = first
    for part in parts:
        x[:, :, length : length + part.shape[2]] = part
        length += part.shape[2]
    return x


def _sum(total: tuple[Any, ...], part: tuple[Any, ...]) -> tuple[Any, ...]:
    """Entry by entry, where None stays None; a total without entries is zero."""
    if not total:
        return part
    return tuple(None if x is None else x + y for x, y in zip(total, part, strict=True))


def _gradients(ctx: Any, args: Tokens, grads: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    """The gradients of those arguments that need one; with grad mode on, they can be differentiated again."""
    create_graph, needed = torch.is_grad_enabled(), ctx.needs_input_grad[3:]
    with torch.enable_grad():
        # Views, so that gradients are those of these arguments and not of what they were made of.
        inputs = [x if x is None else x.view_as(x) if create_graph else x.detach() for x in args]
        wanted = [x for x, need in zip(inputs, needed, strict=True) if need and x is not None]
        if not create_graph:
            for x in wanted:
                x.requires_grad_()
        pairs = [pair for pair in zip(ctx.function(*inputs), grads, strict=True) if pair[0].requires_grad]
        results, weights = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(results, wanted, weights, create_graph=create_graph))
        return tuple(next(found) if need else None for need in needed)
