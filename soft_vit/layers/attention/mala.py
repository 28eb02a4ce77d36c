"""Magnitude-aware linear attention of MAViT (Fan et al. 2025, arXiv 2507.00698), as the released code computes it."""

import torch
from torch import Tensor

from soft_vit.layers.attention.gated_rotary import GatedRotaryAttention
from soft_vit.ops.by_heads import by_heads
from soft_vit.ops.layout import Layout
from soft_vit.ops.linear import elu_features
from soft_vit.ops.numerics import at_least_float32, full_precision
from soft_vit.ops.rotary import rotate_by_place


@by_heads
def mala_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Linear attention that a longer query makes sharper: a factor and a shift in place of a denominator.

    `(1 + 1 / (z_i + 1e-6)) / sqrt(D) R(q_i)^T mean_j(R(k_j) v_j^T) - z_i mean_j(v_j)` with features `q, k = elu + 1`,
    `z_i = q_i^T mean_j(k_j) / sqrt(D)`, and R the rotation by place, which z is without. Means are over the tokens that
    count. q, k, v and the result `[B, H, P + N, D]`, the result in v's dtype; everything inside is at least fp32.
    """
    with full_precision(q):
        dtype, scale = v.dtype, q.shape[-1] ** -0.5
        q, k, v = elu_features(q), layout.keep(elu_features(k)), layout.keep(at_least_float32(v))
        count = layout.num_tokens(q)
        z = q @ (k.sum(2, keepdim=True) / count).mT * scale
        q, k = rotate_by_place(layout, q, k, end_point=True)
        product = q @ (k.mT @ v * (scale / count))
        return (product * (1 + 1 / (z + 1e-6)) - z * (v.sum(2, keepdim=True) / count)).to(dtype)


# A leaf of symbolic tracing: it looks at sizes and masks.
torch.fx.wrap("mala_attention")


class MALAttention(GatedRotaryAttention):
    """`(1 + 1 / z_i) / sqrt(d) R(q_i) . mean_j(R(k_j) v_j^T) - z_i mean_j(v_j)`, a convolution of values, and a gate.

    Queries and keys are features `elu + 1`, R rotates by place, and `z_i = q_i . mean_j(k_j) / sqrt(d)` lets a longer
    query be sharper.
    """

    cost: str = "N"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return mala_attention(q, k, v, layout)
