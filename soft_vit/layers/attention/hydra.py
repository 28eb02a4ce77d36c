"""Hydra attention: as many heads as channels, with a cosine kernel (Bolya et al. 2022, arXiv 2209.07484)."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention, Traits, check_heads
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least_float32, full_precision


def hydra_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Return `q^_i * sum_j k^_j * v_j` of q `[B, C, N, 1]`, k and v `[B, C, M, 1]`, at least fp32 inside.

    Each channel is a head; q^ and k^ have length one over all channels. layout: of the keys.
    """
    with full_precision(q):
        q, k = (F.normalize(at_least_float32(x), dim=1) for x in (q, k))
        return (q * layout.zero_padded(k * at_least_float32(v)).sum(2, keepdim=True)).to(v.dtype)


class HydraAttention(SelfAttention):
    """`q^_i * sum_j k^_j * v_j`, channel by channel: each is a head; q^ and k^ have length one over all channels.

    num_heads must divide the width, and is otherwise ignored.
    """

    traits = Traits("N", mask_refusal=None, needs_grid=False, takes_context=True, qk="channels")

    def __init__(self, dim: int, num_heads: int, **options: Any) -> None:
        check_heads(dim, num_heads)
        super().__init__(dim, dim, **options)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return hydra_attention(q, k, v, layout)
