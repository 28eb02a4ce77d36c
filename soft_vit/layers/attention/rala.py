"""Rank-augmented linear attention of RAVLT (Fan et al. 2024, arXiv 2411.07635), as the released code computes it."""

import math

import torch
from torch import Tensor

from soft_vit.layers.attention.gated_rotary import GatedRotaryAttention
from soft_vit.ops.by_heads import by_heads
from soft_vit.ops.layout import Layout
from soft_vit.ops.linear import elu_features
from soft_vit.ops.numerics import at_least_float32, full_precision
from soft_vit.ops.rotary import rotate_by_place


@by_heads
def rala_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Linear attention whose keys are weighted by a softmax of their products with the mean query.

    `R(q_i)^T mean_j(R(a_j k_j) v_j^T) / (q_i^T mean_j(a_j k_j) + 1e-6)` with features `q, k = elu + 1`, weights
    `a_j = N softmax_j(mean(q)^T k_j / sqrt(D))` of mean 1, and R the rotation by place: the denominator is not turned,
    so weights of tokens need not sum to 1. Means are over the tokens that count. q, k, v and the result
    `[B, H, P + N, D]`, the result in v's dtype; everything inside is at least fp32.
    """
    with full_precision(q):
        dtype = v.dtype
        q, k, v = elu_features(q), layout.keep(elu_features(k)), layout.keep(at_least_float32(v))
        count = layout.num_tokens(q)
        query = layout.keep(q).sum(2, keepdim=True) / count * q.shape[-1] ** -0.5
        scores = query @ k.mT
        if layout.key_mask is not None:
            scores = scores.masked_fill(~layout.key_mask, -math.inf)
        k = k * (scores.softmax(-1) * count).mT
        normalizer = q @ (k.sum(2, keepdim=True) / count).mT + 1e-6
        q, k = rotate_by_place(layout, q, k, end_point=True)
        return (q @ (k.mT @ v / count) / normalizer).to(dtype)


# A leaf of symbolic tracing: it looks at sizes and masks.
torch.fx.wrap("rala_attention")


class RALAttention(GatedRotaryAttention):
    """`R(q_i) . sum_j R(a_j k_j) v_j^T / (q_i . sum_j a_j k_j)`, a convolution of values, and a gate.

    Queries and keys are features `elu + 1`, and R rotates by place. The weights `a` of the keys are a softmax over the
    tokens: one row for each head, not one for each token.
    """

    cost: str = "N"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return rala_attention(q, k, v, layout)
