"""Attention as a function of queries, keys and values: `attention`, and `varlen_attention` for packed sequences.

Letters: B batch, H heads, N queries, M keys, D channels of queries and keys, Dv of values, T tokens of S sequences.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from soft_vit.layers.attention import ATTENTIONS, name_hint
from soft_vit.ops.circulant import circulant_attention
from soft_vit.ops.cosformer import cosformer_attention
from soft_vit.ops.efficient import efficient_attention
from soft_vit.ops.focused import focused_attention
from soft_vit.ops.gaussian import scaled_gaussian_attention
from soft_vit.ops.hydra import hydra_attention
from soft_vit.ops.inline import inline_attention
from soft_vit.ops.layout import Layout, check_mask, check_qkv
from soft_vit.ops.linear import feature_attention
from soft_vit.ops.numerics import Scaled, rescaled
from soft_vit.ops.nystrom import nystrom_attention
from soft_vit.ops.packed import attend_in_chunks, attend_in_turn, packing
from soft_vit.ops.performer import performer_attention
from soft_vit.ops.sima import sima_attention
from soft_vit.ops.skyformer import skyformer_attention
from soft_vit.ops.soft.attention import averaged_soft_attention
from soft_vit.ops.softmax import softmax_attention


class Operator(NamedTuple):
    """The function of a kind, `(q, k, v, layout, **options)`, and what it takes."""

    attend: Callable[..., Tensor]
    scaled: Scaled = None
    packed: Callable[..., Tensor] | None = None
    """How it attends within packed sequences: `(attend, q, k, v, packing, **options)`."""
    options: tuple[str, ...] = ()


SOFT = ("sr_ratio", "max_bottleneck", "inverse", "newton_iters", "ridge", "normalize")
OPERATORS: dict[str, Operator] = {
    "softmax": Operator(softmax_attention, "products", attend_in_turn),
    "softmax_one": Operator(partial(softmax_attention, add_one=True), "products", attend_in_turn),
    "gaussian": Operator(scaled_gaussian_attention, "distances"),
    "linear": Operator(feature_attention, None, attend_in_chunks, ("features",)),
    "focused": Operator(focused_attention, None, attend_in_chunks, ("power",)),
    "performer": Operator(performer_attention, "distances", attend_in_chunks, ("projection", "kernel")),
    "efficient": Operator(efficient_attention, None, attend_in_chunks),
    "hydra": Operator(hydra_attention, None, attend_in_chunks),
    "inline": Operator(inline_attention, "products"),
    "sima": Operator(sima_attention, None, attend_in_chunks),
    "cosformer": Operator(cosformer_attention, None, attend_in_chunks),
    "circulant": Operator(circulant_attention, None, attend_in_turn),
    "nystrom": Operator(nystrom_attention, "products", None, ("sr_ratio", "max_landmarks", "inverse", "iters")),
    "skyformer": Operator(skyformer_attention, "distances", None, ("sr_ratio", "max_landmarks", "ridge")),
    "soft": Operator(averaged_soft_attention, "distances", None, SOFT),
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
    options: those of the module that `OPERATORS` lists, and of `performer` its random features, projection `[F, D]`, by
        default fixed ones. SOFT's key is its query; given another key, its kernel to the queries' bottleneck tokens
        gathers the values.

    Raises ValueError for an unknown type or option, tensors that do not fit, and a mask of another shape or dtype.

    >>> q, k, v = (torch.randn(2, 4, 196, 32) for _ in range(3))
    >>> soft_vit.attention(q, k, v, "performer").shape
    torch.Size([2, 4, 196, 32])
    """
    operator = _operator(kind, options)
    check_qkv(query, key, value, "BHND")
    (B, _, M, _), mask = key.shape, key_padding_mask
    if kind not in CROSS_KINDS and query.shape[2] != M:
        raise ValueError(f"query must be of one sequence with key for {kind!r}, {M} tokens, got {query.shape[2]}.")
    check_mask(mask, (B, M))
    layout = Layout((M, 1), 0, mask, sequence=True)
    if mask is not None:
        # NaN in padding must not reach others, also by landmarks of queries.
        same, key, value = key is query, layout.zero_padded(key), layout.zero_padded(value)
        query = query if kind in CROSS_KINDS else key if same else layout.zero_padded(query)
    q, k = rescaled(query, key, scale, operator.scaled)
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
    check_qkv(query, key, value, "THD")
    q, k = rescaled(query, key, scale, operator.scaled)
    return operator.packed(operator.attend, q, k, value, packing(cu_seqlens, len(query)), **options)


def _operator(kind: str, options: dict[str, Any]) -> Operator:
    """Return the functions of a kind; ValueError for an unknown kind or option."""
    if kind not in OPERATORS:
        hint = name_hint(str(kind), OPERATORS, f"use one of {', '.join(OPERATORS)}.")
        raise ValueError(f"kind must be one of soft_vit.FUNCTIONAL_KINDS, got {kind!r}; {hint}")
    operator = OPERATORS[kind]
    if unknown := options.keys() - operator.options:
        raise ValueError(f"Options of {kind!r} must be among {[*operator.options]}, got {min(unknown)!r}.")
    return operator
