"""cosFormer: linear attention reweighted by the distance of tokens (Qin et al. 2022, arXiv 2202.08791)."""

import math

import torch
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention, Traits
from soft_vit.ops.layout import Layout
from soft_vit.ops.linear import linear_attention, relu_features
from soft_vit.ops.numerics import wide_dtype


def turned_features(x: Tensor, angle: Tensor) -> Tensor:
    """Return `[relu(x) cos(angle), relu(x) sin(angle)]`, `[B, H, N, D]` to `[B, H, N, 2 D]`.

    The cosine of a difference is a sum of such products; where angles lie in the first quadrant, none is negative.
    """
    x = relu_features(x)
    return torch.cat([x * angle.cos(), x * angle.sin()], dim=-1)


def cosformer_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Attend by `s_ij = relu(q_i) . relu(k_j) cos(pi / 2 (i - j) / N)`, in a cost linear in N; tensors `[B, H, N, D]`.

    N counts prefix tokens too; i and j are positions among the N valid tokens. Everything inside is at least
    fp32.
    """
    if layout.mask is None:
        position = torch.arange(q.shape[2], dtype=wide_dtype(q), device=q.device)[None, None, :, None]
    else:
        position = (layout.mask.cumsum(1) - 1).clamp(min=0).to(wide_dtype(q))[:, None, :, None]
    angle = position * (0.5 * math.pi / layout.num_tokens(q))
    return linear_attention(q, k, v, layout, phi=turned_features, positions=angle)


class CosformerAttention(SelfAttention):
    """`sum_j s_ij v_j / sum_j s_ij`, `s_ij = relu(q_i) . relu(k_j) cos(pi / 2 (i - j) / N)`: near tokens weigh more.

    Distances are in raster order, as the published form is for text.
    """

    traits = Traits("N", mask_refusal=None, needs_grid=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return cosformer_attention(q, k, v, layout)
