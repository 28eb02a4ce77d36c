"""Hedgehog: linear attention with learned exponential features (Zhang et al. 2024, arXiv 2402.04347)."""

import torch
from torch import Tensor

from soft_vit.ops.layout import WHOLE
from soft_vit.ops.linear import exponential_attention
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
    """

    def of_q(q: Tensor, q_maps: Tensor, k_maps: Tensor) -> Tensor:
        return signed_exponents(q, q_maps)

    def of_k(k: Tensor, q_maps: Tensor, k_maps: Tensor) -> Tensor:
        return signed_exponents(k, k_maps)

    return exponential_attention(q, k, v, layout, of_q, of_k, (q_maps, k_maps))
