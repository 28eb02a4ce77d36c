"""Compute functions part by part, and again in backward, so that training stores only their arguments.

`in_parts` computes any parts, `by_heads` a few heads at a time, `sum_over_tokens` and `map_tokens` a few tokens at a
time. The last two make a linear attention: a state, summed over keys and values, and what each query reads from it.

Letters: B batch, H heads, N tokens, D channels of a head.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from soft_vit.ops.numerics import full_precision, full_precision_backward, in_transform, wide_dtype

Attend = TypeVar("Attend", bound=Callable[..., Tensor])

# With fewer tokens, little is stored, and computing it twice takes a larger part of the time.
MIN_TOKENS = 2048
# Bytes of q of the heads that are computed together, so that intermediates stay in a core's cache of 1 to 2 MiB.
HEAD_CHUNK_BYTES = 512 << 10
# Bytes of the first tensor of the tokens that are computed together; in training, where a part takes more calls, twice.
TOKEN_CHUNK_BYTES = 256 << 10

Arguments = Sequence[Tensor | None]
Results = tuple[Tensor, ...]

Tokens = tuple[Tensor | None, ...]
"""Tensors `[B or 1, H or 1, N, ...]`, the first `[B, H, N, D]`; None for an absent one, such as a mask."""

Shared = tuple[Tensor, ...]
"""Tensors without tokens, such as weights and states."""


class Part(NamedTuple):
    """One part of a function."""

    cut: Callable[[Arguments], Arguments]
    """Return views of the part of the arguments, or of tensors of their shapes; None stays None."""
    compute: Callable[..., Results]
    """Return the results of these views."""


def computes_parts(q: Tensor) -> bool:
    """Return whether to compute an attention in parts: for many tokens q `[B, H, N, D]`, on a CPU, outside of graphs.

    On a GPU, small parts are slow.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing() or in_transform():
        return False
    return q.device.type == "cpu" and q.shape[2] >= MIN_TOKENS and q.shape[0] > 0


def in_parts(parts: Sequence[Part], dim: int | None, *args: Tensor | None, before: Sequence[Part] = ()) -> Results:
    """Return the results of all parts: summed if dim is None, otherwise one result `[B, H, N, D]`, joined along dim.

    With a dim, parts cut the first argument along it, in order, and the length of each result is that of its cut, or a
    multiple. The cuts of other arguments may overlap. Memory is that of the arguments, their gradients and the result,
    plus that of one part; a training step takes one more forward. Gradients reach only args. Backward draws the same
    random numbers as forward.

    before: parts of args, without random numbers, whose summed results parts take after args. In one call, both add to
        the same gradients of args; in two, each would allocate its own.
    """
    return _InParts.apply(before, parts, dim, *args)


def all_at_once(parts: Sequence[Part], dim: int | None, *args: Tensor | None, before: Sequence[Part] = ()) -> Results:
    """Compute `in_parts` as one differentiable expression, which stores the intermediates of all parts."""
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
            # All at once if the gradients will be differentiated again.
            if len(ctx.parts) == 1 or torch.is_grad_enabled():
                compute = partial(all_at_once, ctx.parts, ctx.dim, before=ctx.before)
                return None, None, None, *_gradients(ctx, compute, args[: ctx.num_args], needed, grads)
            needed = (*needed, *[True] * (len(args) - ctx.num_args))
            found: list[Tensor | None] = [None] * len(args)
            for i, view in enumerate(ctx.parts[0].cut(args)):
                if needed[i]:
                    # The gradient of an argument that all parts read is a sum of many terms.
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
    """Add the gradients of args to found, where it is not None; grads: of the results."""
    needed, weights, place = [x is not None for x in found], grads, 0
    for part in parts:
        views = part.cut(args)
        if dim is not None:
            length = _length(views, dim) * _length(grads, dim) // _length(args, dim)
            assert grads[0] is not None
            weights = (grads[0].narrow(dim, place, length),)
            place += length
        # Unnamed, so that the gradients are freed before the next part.
        pairs = zip(part.cut(found), _gradients(ctx, part.compute, views, needed, weights), strict=True)
        for x, gradient in pairs:
            if x is not None and gradient is not None:
                x += gradient


def _length(args: Arguments, dim: int) -> int:
    """Return the length of the first tensor along dim."""
    assert args[0] is not None
    return args[0].shape[dim]


def _empty_result(x: Tensor, dim: int, length: int) -> Tensor:
    """Allocate `[B, H, N, D]` of this length along dim, laid out as `[B, N, H * D]`, which a projection takes."""
    B, H, N, D = (length if i == dim else size for i, size in enumerate(x.shape))
    return x.new_empty(B, N, H, D).transpose(1, 2)


def _summed_parts(parts: Sequence[Part], args: Arguments) -> Results:
    """Return the sum of the results of all parts, entry by entry; an empty tuple without parts."""
    total: Results = ()
    for part in parts:
        results = part.compute(*part.cut(args))
        total = tuple(x + y for x, y in zip(total, results, strict=True)) if total else results
    return total


def _gradients(
    ctx: Any, compute: Callable[..., Results], args: Arguments, needed: Sequence[bool], grads: Arguments
) -> list[Tensor | None]:
    """Return the gradients of the needed arguments; in grad mode, they can be differentiated again."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, so that gradients stop at these arguments.
        inputs = [x if x is None else x.view_as(x) if create_graph else x.detach() for x in args]
        wanted = [x for x, need in zip(inputs, needed, strict=True) if need and x is not None]
        if not create_graph:
            for x in wanted:
                x.requires_grad_()
        with torch.autocast("cpu", **ctx.autocast):
            results = compute(*inputs)
        if not (pairs := [pair for pair in zip(results, grads, strict=True) if pair[0].requires_grad]):
            return [None] * len(args)
        differentiable, weights = zip(*pairs, strict=True)
        with full_precision_backward(differentiable[0]):
            found = torch.autograd.grad(differentiable, wanted, weights, create_graph=create_graph, allow_unused=True)
        rest = iter(found)
        return [next(rest) if need else None for need in needed]


def by_heads(attend: Attend) -> Attend:
    """Decorate attend to compute a few heads at a time for large N on a CPU, and to store only its arguments.

    Memory is then that of the arguments and the result, plus the intermediates of a few heads. A training step takes
    one more forward of attend; better use of the cache saves part of that time. On a GPU nothing changes.

    attend must treat all heads alike. Its tensors of four dimensions, `[B or 1, H, ...]`, are split by heads; the first
    is q `[B, H, N, D]`. Others, and the result, may have a multiple of H. Backward draws the same random numbers as
    forward.
    """

    @wraps(attend)
    def attend_by_heads(*args: Any, **kwargs: Any) -> Tensor:
        q = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.ndim == 4)
        if not computes_parts(q):
            return attend(*args, **kwargs)
        leaves, structure = tree_flatten((args, kwargs))
        # Tensors of heads first, because parts cut the first one.
        indices = sorted((i for i, x in enumerate(leaves) if isinstance(x, Tensor)), key=lambda i: leaves[i].ndim != 4)
        tensors = [leaves[i] for i in indices]
        # Without the tensors, which `compute` would keep in memory.
        others = [None if isinstance(x, Tensor) else x for x in leaves]

        def compute(*part: Tensor) -> tuple[Tensor]:
            given = list(others)
            for i, x in zip(indices, part, strict=True):
                given[i] = x
            args, kwargs = tree_unflatten(given, structure)
            return (attend(*args, **kwargs),)

        B, H, N, D = q.shape
        size = max(1, HEAD_CHUNK_BYTES // (B * N * D * q.element_size()))
        parts = [Part(partial(_cut_heads, first, size, H), compute) for first in range(0, H, size)]
        return in_parts(parts, 1, *tensors)[0]

    return cast(Attend, attend_by_heads)


def _cut_heads(first: int, size: int, num_heads: int, args: Arguments) -> Arguments:
    """Return some heads of the arguments, which may have a multiple of num_heads, and arguments without heads whole."""

    def cut(x: Tensor | None) -> Tensor | None:
        return x if x is None or x.ndim != 4 else x.split(size * (x.shape[1] // num_heads), dim=1)[first // size]

    return list(map(cut, args))


def sum_over_tokens(function: Callable[..., Results], tokens: Tokens, shared: Shared = ()) -> Results:
    """Return `function(*tokens, *shared)`, whose results must be sums over the tokens, without autocast.

    For large N on a CPU, function runs on a few tokens at a time, stores only its arguments for backward, and runs once
    more there. Gradients reach tokens and shared, but not tensors that function closes over.
    """
    return _over_tokens(function, None, tokens, shared)


def map_tokens(
    function: Callable[..., Tensor],
    tokens: Tokens,
    shared: Shared = (),
    chunk_size: int = 1,
    sums: Callable[..., Results] | None = None,
) -> Tensor:
    """Return `function(*tokens, *shared)`, `[B, H, N, ...]`, which must compute each token from this token alone.

    It is computed as in `sum_over_tokens`.
    chunk_size: number of consecutive tokens that function computes from each other; such a chunk is never split.
    sums: if given, function takes `sum_over_tokens(sums, tokens, shared)` after shared. Tokens that both read then have
        one gradient in memory instead of two.
    """
    return _over_tokens(lambda *args: (function(*args),), 2, tokens, shared, chunk_size, sums)[0]


def max_over_tokens(function: Callable[..., Tensor], tokens: Tokens, shared: Shared = ()) -> Tensor:
    """Return the maximum over tokens of `function(*tokens, *shared)` `[B, H, N, ...]`, without a gradient."""
    # Detached instead of torch.no_grad, which would become a subgraph in an exported graph.
    tokens, shared = tuple(x if x is None else x.detach() for x in tokens), tuple(x.detach() for x in shared)
    first = _first(tokens)
    with full_precision(first):
        if not computes_parts(first):
            return function(*tokens, *shared).amax(2, keepdim=True)
        cuts = (_cut_tokens(len(tokens), span, (*tokens, *shared)) for span in _spans(first))
        return torch.cat([function(*part).amax(2, keepdim=True) for part in cuts], dim=2).amax(2, keepdim=True)


def _over_tokens(
    function: Callable[..., Results],
    dim: int | None,
    tokens: Tokens,
    shared: Shared,
    chunk_size: int = 1,
    sums: Callable[..., Results] | None = None,
) -> Results:
    functions = [_in_full_precision(f) for f in (sums, function) if f is not None]
    first = _first(tokens)
    if not computes_parts(first):
        results: Results = ()
        for compute in functions:
            results = compute(*tokens, *shared, *results)
        return results
    cuts = [partial(_cut_tokens, len(tokens), span) for span in _spans(first, chunk_size)]
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
    """Yield spans of the tokens of x `[B, H, N, D]`, in whole chunks."""
    N, size = x.shape[2], TOKEN_CHUNK_BYTES * (2 if torch.is_grad_enabled() else 1)
    length = chunk_size * max(1, size * N // (chunk_size * x.nbytes))
    return (slice(start, start + length) for start in range(0, N, length))


def _cut_tokens(count: int, span: slice, args: Arguments) -> Arguments:
    """Return the tokens of span of the first count arguments, and the other arguments whole."""
    return [x if x is None or i >= count else x[:, :, span] for i, x in enumerate(args)]
