"""Efficient attention: a softmax over features and one over tokens (Shen et al. 2018, arXiv 1812.01243)."""

import math

from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention, Traits
from soft_vit.ops.layout import Layout


def efficient_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Return `softmax(Q) (softmax(K)^T V)` `[B, H, N, Dv]` of q `[B, H, N, D]`, k `[B, H, M, D]` and v `[B, H, M, Dv]`.

    layout: of the keys, of which padding is left out.
    """
    return q.softmax(-1) @ (layout.zero_padded(k, -math.inf).softmax(-2).mT @ layout.zero_padded(v))


class EfficientAttention(SelfAttention):
    """`softmax(Q) (softmax(K)^T V)`: queries normalised over their features, each feature of the keys over tokens."""

    traits = Traits("N", mask_refusal=None, needs_grid=False, takes_context=True)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return efficient_attention(q, k, v, layout)
