"""Hedgehog: linear attention with learned exponential features (Zhang et al. 2024, arXiv 2402.04347)."""

import math

import torch
from torch import Tensor

from soft_vit.ops.chunked import max_over_tokens
from soft_vit.ops.layout import WHOLE, fill_padding
from soft_vit.ops.linear import linear_attention
from soft_vit.ops.numerics import at_least_float32
from soft_vit.ops.packed import AnyLayout


def signed_exponents(x: Tensor, maps: Tensor) -> Tensor:
    """Return `[W x, -W x]` `[B, H, N, 2 M]` of queries or keys x `[B, H, N, D]` and maps W^T `[H, D, M]`."""
    x = at_least_float32(x) @ at_least_float32(maps)
    return torch.cat([x, -x], dim=-1)


def hedgehog_attention(
    q: Tensor, k: Tensor, v: Tensor, q_maps: Tensor, k_maps: Tensor, layout: AnyLayout = WHOLE
) -> Tensor:
    """Attend by `exp([W x, -W x])` to all valid tokens, linear in N, at least fp32 inside.

    q, k, v: `[B, H, P + N, D]`; the result has v's shape and dtype. q_maps, k_maps: `[H, D, M]`.

    The largest exponent of each feature over the keys moves from the keys to the queries, and that of each query
    cancels in the attention, so that no input overflows and the normaliser is at least one.
    """

    def exponents(k: Tensor, mask: Tensor | None, maps: Tensor) -> Tensor:
        return fill_padding(signed_exponents(k, maps), mask, -math.inf)

    with torch.no_grad():
        largest = layout.largest(max_over_tokens(exponents, (k, layout.token_mask), (k_maps,)))

    def key_features(k: Tensor, q_maps: Tensor, k_maps: Tensor, largest: Tensor) -> Tensor:
        # Padding may have larger ones. A bound of 0 would stop the gradient of the largest.
        return (signed_exponents(k, k_maps) - largest).clamp(max=1).exp()

    def query_features(q: Tensor, q_maps: Tensor, k_maps: Tensor, largest: Tensor) -> Tensor:
        exponent = signed_exponents(q, q_maps) + largest
        return (exponent - exponent.detach().amax(-1, keepdim=True)).exp()

    return linear_attention(q, k, v, layout, phi=key_features, phi_q=query_features, weights=(q_maps, k_maps, largest))
