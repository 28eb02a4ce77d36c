"""Attention as a function of queries, keys and values: `attention`, and `varlen_attention` for packed sequences.

Letters: B batch, H heads, N queries, M keys, D channels of a query or key, Dv channels of a value; T tokens of S packed
sequences.
"""

import math
from collections.abc import Callable
from functools import partial, wraps
from inspect import signature
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from soft_vit.layers.attention import ATTENTIONS, name_hint
from soft_vit.layers.attention.base import at_least, grid_limit, window
from soft_vit.layers.attention.bottleneck import average_tokens
from soft_vit.layers.attention.cosformer import cosformer_attention, turned_features
from soft_vit.layers.attention.efficient import efficient_attention
from soft_vit.layers.attention.focused import focused_features
from soft_vit.layers.attention.hydra import hydra_attention
from soft_vit.layers.attention.inline import inline_attention
from soft_vit.layers.attention.landmarks import isolate_missing, landmark_tokens
from soft_vit.layers.attention.linear import FEATURE_MAPS, Features
from soft_vit.layers.attention.performer import (
    Kernel,
    default_num_features,
    favor_attention,
    key_exponents,
    key_features,
    orthogonal_random_features,
    query_features,
    relu_features,
)
from soft_vit.layers.attention.sima import sima_attention
from soft_vit.layers.attention.skyformer import skyformer_attention
from soft_vit.ops import gaussian_attention, soft_attention
from soft_vit.ops.chunked import by_heads
from soft_vit.ops.layout import Layout
from soft_vit.ops.linear import MIN_NORMALIZER, linear_attention
from soft_vit.ops.numerics import at_least_float32, check_choice, full_precision
from soft_vit.ops.nystrom import PseudoInverse, nystrom_attention
from soft_vit.ops.packed import Packing, packed_softmax, packing
from soft_vit.ops.soft.options import Inverse, InverseOptions
from soft_vit.ops.soft.reference import attend as soft_attend
from soft_vit.ops.softmax import softmax_attention

Grid = int | tuple[int, int] | None


def _softmax(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    return softmax_attention(q, k, v, layout)


def _softmax_one(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    return softmax_attention(q, k, v, layout, add_one=True)


def _linear(q: Tensor, k: Tensor, v: Tensor, layout: Layout, features: Features = "elu") -> Tensor:
    return linear_attention(q, k, v, layout, phi=FEATURE_MAPS[check_choice("features", features, tuple(FEATURE_MAPS))])


def _focused(q: Tensor, k: Tensor, v: Tensor, layout: Layout, power: float = 3.0) -> Tensor:
    return linear_attention(q, k, v, layout, phi=_focus(power))


def _focus(power: float) -> Callable[[Tensor], Tensor]:
    if power <= 0:
        raise ValueError(f"power must be positive, got power={power}.")
    return partial(focused_features, power=power)


def _performer(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, projection: Tensor | None = None, kernel: Kernel = "softmax"
) -> Tensor:
    kernel = check_choice("kernel", kernel, get_args(Kernel))
    return favor_attention(q, k, v, _random_features(q, projection), kernel, layout)


def _random_features(q: Tensor, projection: Tensor | None) -> Tensor:
    """Return projection `[F, D]`; for None the same features in all calls, as many as the module draws."""
    D = q.shape[-1]
    if projection is None:
        return _draw_features(D).to(q.device)
    if projection.ndim != 2 or projection.shape[1] != D:
        raise ValueError(f"projection must have shape [F, {D}], got {tuple(projection.shape)}.")
    return projection


# Drawn while a graph is captured, as a constant of it.
@torch.compiler.assume_constant_result
def _draw_features(dim: int) -> Tensor:
    return orthogonal_random_features(default_num_features(dim), dim, torch.Generator().manual_seed(0))


def _hydra(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Attend with a head for each channel; queries and keys have length one over the channels of all heads."""
    heads = q.shape[1]
    q, k, v = (x.mT.flatten(1, 2)[..., None] for x in (q, k, v))
    return hydra_attention(q, k, v, layout)[..., 0].unflatten(1, (heads, -1)).mT


def _gaussian(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    scale = q.shape[-1] ** -0.25
    return gaussian_attention(q * scale, v, mask=layout.key_mask, k=None if k is q else k * scale)


@by_heads
def _nystrom(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    sr_ratio: int = 1,
    max_landmarks: Grid = 7,
    inverse: PseudoInverse = "iterative",
    iters: int = 6,
) -> Tensor:
    limit = grid_limit("max_landmarks", max_landmarks, sequence=True)
    sr_ratio, iters = at_least("sr_ratio", sr_ratio), at_least("iters", iters, 0)
    (of_queries, exist), (of_keys, _) = (landmark_tokens(x, layout, sr_ratio, limit) for x in (q, k))
    return nystrom_attention(q, k, v, of_queries, of_keys, exist, layout, inverse, iters)


def _skyformer(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, sr_ratio: int = 1, max_landmarks: Grid = 7, ridge: float = 0.01
) -> Tensor:
    limit = grid_limit("max_landmarks", max_landmarks, sequence=True)
    return skyformer_attention(q, k, v, layout, at_least("sr_ratio", sr_ratio), limit, ridge)


def _soft(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    sr_ratio: int = 1,
    max_bottleneck: Grid = 7,
    inverse: Inverse = "newton",
    newton_iters: int = 20,
    ridge: float = 0.01,
    normalize: bool = False,
) -> Tensor:
    options = InverseOptions(inverse, normalize, newton_iters, ridge)
    scale, same = q.shape[-1] ** -0.25, k is q
    q = q * scale
    limit = grid_limit("max_bottleneck", max_bottleneck, sequence=True)
    maps = q.flatten(0, 1).mT[..., None]
    tokens, exist = average_tokens(maps, window(at_least("sr_ratio", sr_ratio), sequence=True), limit, layout)
    tokens = tokens.unflatten(0, q.shape[:2])
    if exist is not None:
        tokens = isolate_missing(tokens, exist)
    v = layout.zero_padded(v)
    if same:
        return soft_attention(q, tokens, v, inverse, normalize, newton_iters, ridge)
    with full_precision(q):
        q, k, tokens, wide = (at_least_float32(x) for x in (q, k * scale, tokens, v))
        return soft_attend(q, tokens, wide, options, k).to(v.dtype)


def _packed_softmax(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    return packed_softmax(q, k, v, packing.lengths)


def _packed_softmax_one(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    return packed_softmax(q, k, v, packing.lengths, add_one=True)


def _packed(mix: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an attention of packed tokens `[T, H, D]` by mix, which takes chunks `[G, H, L, D]` at least in fp32."""

    @wraps(mix)
    def attend(q: Tensor, k: Tensor, v: Tensor, packing: Packing, **options: Any) -> Tensor:
        with full_precision(q):
            chunks = (packing.chunks(at_least_float32(x)) for x in (q, k, v))
            return packing.tokens(mix(*chunks, packing, **options)).to(v.dtype)

    return attend


def _divided(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    """Return `q_i sum_j k_j v_j^T / q_i sum_j k_j` for chunks of features q and k `[G, H, L, F]`."""
    k = k * packing.inside
    state, total = packing.total(k.mT @ v), packing.total(k.sum(2)[..., None])
    return q @ state / (q @ total).clamp(min=MIN_NORMALIZER)


@_packed
def _packed_linear(q: Tensor, k: Tensor, v: Tensor, packing: Packing, features: Features = "elu") -> Tensor:
    phi = FEATURE_MAPS[check_choice("features", features, tuple(FEATURE_MAPS))]
    return _divided(phi(q), phi(k), v, packing)


@_packed
def _packed_focused(q: Tensor, k: Tensor, v: Tensor, packing: Packing, power: float = 3.0) -> Tensor:
    phi = _focus(power)
    return _divided(phi(q), phi(k), v, packing)


@_packed
def _packed_performer(
    q: Tensor, k: Tensor, v: Tensor, packing: Packing, projection: Tensor | None = None, kernel: Kernel = "softmax"
) -> Tensor:
    projection = _random_features(q, projection).to(q.dtype)
    if check_choice("kernel", kernel, get_args(Kernel)) == "relu":
        return _divided(relu_features(q, projection), relu_features(k, projection), v, packing)
    largest = packing.largest(key_exponents(k, projection).masked_fill(~packing.inside, -math.inf))
    return _divided(query_features(q, projection, largest), key_features(k, projection, largest), v, packing)


@_packed
def _packed_efficient(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    k = k.masked_fill(~packing.inside, -math.inf)
    k = (k - packing.largest(k)).exp()
    return q.softmax(-1) @ (packing.total(k.mT @ v) / packing.total(k.sum(2)[..., None]))


@_packed
def _packed_sima(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    q_sum, k_sum = (packing.total(x.abs().sum(2, keepdim=True)).clamp(min=1e-12) for x in (q, k))
    return (q / (q_sum * k_sum)) @ packing.total(k.mT @ v)


@_packed
def _packed_hydra(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    q, k = (x / torch.linalg.vector_norm(x, dim=(1, 3), keepdim=True).clamp(min=1e-12) for x in (q, k))
    return q * packing.total((k * v).sum(2, keepdim=True))


@_packed
def _packed_cosformer(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    length = packing.lengths[packing.sequence][:, None, None, None]
    angle = 0.5 * math.pi * packing.position.to(q.dtype) / length
    return _divided(turned_features(q, angle), turned_features(k, angle), v, packing)


class Operator(NamedTuple):
    """The functions of a kind, and what they require."""

    attend: Callable[..., Tensor]
    """`(q, k, v, layout, **options)`."""
    scaled: Literal["products", "distances", None] = None
    """Whether products or squared distances of queries and keys have a factor `D^(-1/2)`."""
    packed: Callable[..., Tensor] | None = None
    """`(q, k, v, packing, **options)`."""


OPERATORS: dict[str, Operator] = {
    "softmax": Operator(_softmax, "products", _packed_softmax),
    "softmax_one": Operator(_softmax_one, "products", _packed_softmax_one),
    "gaussian": Operator(_gaussian, "distances"),
    "linear": Operator(_linear, None, _packed_linear),
    "focused": Operator(_focused, None, _packed_focused),
    "performer": Operator(_performer, "distances", _packed_performer),
    "efficient": Operator(efficient_attention, None, _packed_efficient),
    "hydra": Operator(_hydra, None, _packed_hydra),
    "inline": Operator(inline_attention, "products"),
    "sima": Operator(sima_attention, None, _packed_sima),
    "cosformer": Operator(cosformer_attention, None, _packed_cosformer),
    "nystrom": Operator(_nystrom, "products"),
    "skyformer": Operator(_skyformer, "distances"),
    "soft": Operator(_soft, "distances"),
}
FUNCTIONAL_KINDS = tuple(OPERATORS)
"""The attention types of `attention`."""
CROSS_KINDS = tuple(kind for kind in OPERATORS if ATTENTIONS[kind].traits.takes_context)
"""Those of them whose keys may be other tokens than queries."""
PACKED_KINDS = tuple(kind for kind, operator in OPERATORS.items() if operator.packed)
"""The attention types of `varlen_attention`."""


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kind: str = "linear",
    *,
    key_padding_mask: Tensor | None = None,
    scale: float | None = None,
    **options: Any,
) -> Tensor:
    """Attend by one of `FUNCTIONAL_KINDS`: query `[B, H, N, D]`, key `[B, H, M, D]`, value `[B, H, M, Dv]`.

    The result `[B, H, N, Dv]` is what the module of that type computes between its projections, without convolutions
    of values. Tokens are a sequence, and landmarks stand for runs of them. Keys may be other tokens than queries for
    `CROSS_KINDS`; the other types relate the tokens of one sequence, N = M.

    key_padding_mask: bool `[B, M]`, True where a key counts; for types of one sequence also where a query does.
    scale: the factor of products `q . k` or, in Gaussian kernels, of squared distances, positive; by default
        `D^(-1/2)`. Types without such a factor take None alone.
    options: of the module. `linear`: features. `focused`: power. `performer`: kernel, and random features, projection
        `[F, D]`, by default fixed ones. `nystrom`: sr_ratio, max_landmarks, inverse, iters. `skyformer`: sr_ratio,
        max_landmarks, ridge. `soft`: sr_ratio, max_bottleneck, inverse, newton_iters, ridge, normalize. SOFT's key is
        its query; given another key, its kernel to the queries' bottleneck tokens gathers the values.

    Raises ValueError for an unknown type or option, tensors that do not fit, and a mask of another shape or dtype.

    >>> q, k, v = (torch.randn(2, 4, 196, 32) for _ in range(3))
    >>> soft_vit.attention(q, k, v, "performer").shape
    torch.Size([2, 4, 196, 32])
    """
    operator = _operator(kind, options)
    _check_tensors(query, key, value, kind, "BHND")
    (B, _, M, _), mask = key.shape, key_padding_mask
    if kind not in CROSS_KINDS and query.shape[2] != M:
        counts = f"{M} keys and {query.shape[2]} queries"
        raise ValueError(f"query and key must be of one sequence for {kind!r}, got {counts}.")
    layout = Layout((M, 1), 0, mask)
    if mask is not None:
        if mask.dtype != torch.bool or mask.shape != (B, M):
            found = f"{mask.dtype} of shape {tuple(mask.shape)}"
            raise ValueError(f"key_padding_mask must be torch.bool of shape {(B, M)}, True for keys, got {found}.")
        if not torch.compiler.is_compiling() and not mask.any(1).all():
            raise ValueError("key_padding_mask must have at least one True in each row.")
        # NaN in padding must not reach others, also by landmarks of queries.
        same, key, value = key is query, layout.zero_padded(key), layout.zero_padded(value)
        query = query if kind in CROSS_KINDS else key if same else layout.zero_padded(query)
    q, k = _rescale(query, key, scale, kind)
    return operator.attend(q, k, value, layout, **options)


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    kind: str = "linear",
    *,
    scale: float | None = None,
    **options: Any,
) -> Tensor:
    """Attend within each of S packed sequences, by one of `PACKED_KINDS`: query, key `[T, H, D]`, value `[T, H, Dv]`.

    The result `[T, H, Dv]` is that of `attention` for each sequence alone, without a mask and without padding to the
    longest; the layout is that of `flash_attn_varlen_func`.

    cu_seqlens: int32 or int64 `[S + 1]`, the boundaries of sequences, from 0 to T.
    scale, options: see `attention`.

    Raises ValueError for another type, tensors or boundaries that do not fit, and an empty sequence.

    >>> q, k, v = (torch.randn(30, 4, 32) for _ in range(3))
    >>> soft_vit.varlen_attention(q, k, v, torch.tensor([0, 10, 30], dtype=torch.int32), "linear").shape
    torch.Size([30, 4, 32])
    """
    operator = _operator(kind, options)
    if operator.packed is None:
        raise ValueError(f"kind must be one of {', '.join(PACKED_KINDS)} for packed sequences, got {kind!r}.")
    _check_tensors(query, key, value, kind, "THD")
    if cu_seqlens.ndim != 1 or len(cu_seqlens) < 2 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        found = f"{cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}"
        raise ValueError(f"cu_seqlens must be torch.int32 or torch.int64 of shape [S + 1], got {found}.")
    if cu_seqlens[0] != 0 or cu_seqlens[-1] != len(query) or not (cu_seqlens.diff() > 0).all():
        raise ValueError(f"cu_seqlens must increase from 0 to {len(query)}, got {cu_seqlens.tolist()}.")
    q, k = _rescale(query, key, scale, kind)
    return operator.packed(q, k, value, packing(cu_seqlens), **options)


def _operator(kind: str, options: dict[str, Any]) -> Operator:
    """Return the functions of a kind; ValueError for an unknown kind or option."""
    if kind not in OPERATORS:
        hint = name_hint(str(kind), OPERATORS, f"use one of {', '.join(OPERATORS)}.")
        raise ValueError(f"kind must be one of soft_vit.FUNCTIONAL_KINDS, got {kind!r}; {hint}")
    operator = OPERATORS[kind]
    if options:
        accepted = [*signature(operator.attend).parameters][4:]
        if unknown := options.keys() - accepted:
            raise ValueError(f"Options of {kind!r} must be among {accepted}, got {min(unknown)!r}.")
    return operator


def _check_tensors(query: Tensor, key: Tensor, value: Tensor, kind: str, letters: str) -> None:
    """ValueError unless tensors have these dimensions, fit each other and the kind, and have one floating dtype."""
    leading = query.shape[:2] == key.shape[:2] == value.shape[:2]
    requirement = ""
    if not query.ndim == key.ndim == value.ndim == len(letters):
        requirement = f"query, key and value must have shape [{', '.join(letters)}]"
    elif not leading or query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        requirement = "query, key and value must agree in batch, heads, tokens and channels"
    elif kind == "hydra" and value.shape[-1] != key.shape[-1]:
        requirement = "value must have as many channels as key for 'hydra', which multiplies them"
    elif 0 in key.shape[1:]:
        requirement = "key must have at least one head, token and channel"
    if requirement:
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise ValueError(f"{requirement}, got {shapes}.")
    if not (query.dtype == key.dtype == value.dtype and query.is_floating_point()):
        dtypes = ", ".join(str(x.dtype) for x in (query, key, value))
        raise ValueError(f"query, key and value must have one floating dtype, got {dtypes}.")


def _rescale(query: Tensor, key: Tensor, scale: float | None, kind: str) -> tuple[Tensor, Tensor]:
    """Return queries and keys with which the default factor `D^(-1/2)` has the effect of scale."""
    if scale is None:
        return query, key
    scaled, factor = OPERATORS[kind].scaled, scale * query.shape[-1] ** 0.5
    if scaled is None or not 0 < scale < math.inf:
        requirement = "None, as its formula lacks a factor" if scaled is None else "positive"
        raise ValueError(f"scale must be {requirement}, for {kind!r}, got {scale}.")
    if scaled == "products":
        return query * factor, key
    q = query * factor**0.5
    return q, q if key is query else key * factor**0.5
