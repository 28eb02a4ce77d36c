"""Sums over tokens and functions of each token, computed for a few tokens at a time, and once more in backward.

Linear attentions consist of the two: a state, which sums over keys and values, and what each query reads from it.

Letters: B batch, H heads, N tokens, D channels of a head.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from soft_vit.ops.in_parts import Arguments, Part, Results, computes_parts, in_parts
from soft_vit.ops.numerics import full_precision

# Bytes of the first tensor, for the tokens that are computed together: what is made of it then stays in a core's cache.
CHUNK_BYTES = 256 << 10

Tokens = tuple[Tensor | None, ...]
"""Tensors `[B or 1, H or 1, N, ...]`, first of all one `[B, H, N, D]`; None for what is absent, such as a mask."""

Shared = tuple[Tensor, ...]
"""What all tokens share, such as weights and states."""


def sum_over_tokens(function: Callable[..., Results], tokens: Tokens, shared: Shared = ()) -> Results:
    """`function(*tokens, *shared)`, whose results are sums over the tokens, without autocast.

    Where N is large, on a CPU, it takes a few tokens after the others, saves its arguments alone for backward, and
    computes them once more there. Gradients reach tokens and shared, and nothing else that function is made of.
    """
    return _apply(function, None, tokens, shared)


def map_tokens(
    function: Callable[..., Tensor],
    tokens: Tokens,
    shared: Shared = (),
    chunk_size: int = 1,
    sums: Callable[..., Results] | None = None,
) -> Tensor:
    """`function(*tokens, *shared)`, `[B, H, N, ...]`, where each token of the result is made of this token of tokens.

    chunk_size: consecutive tokens that are made together; no chunk is split. Computed as by `sum_over_tokens`.
    sums: function takes `sum_over_tokens(sums, tokens, shared)` as well, behind shared. Tokens that both read then have
        one gradient in memory instead of two.
    """
    return _apply(lambda *args: (function(*args),), 2, tokens, shared, chunk_size, sums)[0]


def max_over_tokens(function: Callable[..., Tensor], tokens: Tokens, shared: Shared = ()) -> Tensor:
    """The largest of `function(*tokens, *shared)` `[B, H, N, ...]` over the tokens, `[B, H, 1, ...]`; no gradient."""
    # Detached tensors instead of a mode without gradients, which an exported graph would hide in a graph of its own.
    tokens, shared = tuple(x if x is None else x.detach() for x in tokens), tuple(x.detach() for x in shared)
    first = _first(tokens)
    with full_precision(first):
        if not computes_parts(first):
            return function(*tokens, *shared).amax(2, keepdim=True)
        cuts = (_cut(len(tokens), span, (*tokens, *shared)) for span in _spans(first))
        return torch.cat([function(*part).amax(2, keepdim=True) for part in cuts], dim=2).amax(2, keepdim=True)


def _apply(
    function: Callable[..., Results],
    dim: int | None,
    tokens: Tokens,
    shared: Shared,
    chunk_size: int = 1,
    sums: Callable[..., Results] | None = None,
) -> Results:
    functions = [_in_full_precision(f) for f in (sums, function) if f is not None]
    if not computes_parts(_first(tokens), *(x for x in (*tokens, *shared) if x is not None)):
        results: Results = ()
        for compute in functions:
            results = compute(*tokens, *shared, *results)
        return results
    cuts = [partial(_cut, len(tokens), span) for span in _spans(_first(tokens), chunk_size)]
    *before, parts = ([Part(cut, compute) for cut in cuts] for compute in functions)
    return in_parts(parts, dim, *tokens, *shared, before=before[0] if before else ())


def _in_full_precision(function: Callable[..., Results]) -> Callable[..., Results]:
    def compute(*args: Tensor | None) -> Results:
        with full_precision(_first(args)):
            return function(*args)

    return compute


def _first(tokens: Tokens) -> Tensor:
    assert tokens[0] is not None
    return tokens[0]


def _spans(x: Tensor, chunk_size: int = 1) -> Iterator[slice]:
    """A few of the tokens `[B, H, N, D]` after the others, in whole chunks."""
    B, H, N, D = x.shape
    length = chunk_size * max(1, CHUNK_BYTES // (chunk_size * B * H * D * x.element_size()))
    return (slice(start, start + length) for start in range(0, N, length))


def _cut(count: int, span: slice, args: Arguments) -> Arguments:
    """These tokens of the first arguments, count of them, and all of the others."""
    return [x if x is None or i >= count else x[:, :, span] for i, x in enumerate(args)]
