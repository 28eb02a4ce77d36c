"""cosFormer: linear attention reweighted by the distance of tokens (Qin et al. 2022, arXiv 2202.08791)."""

import math

import torch
from torch import Tensor

from soft_vit.ops.layout import WHOLE
from soft_vit.ops.linear import linear_attention, relu_features
from soft_vit.ops.packed import AnyLayout


def turned_features(x: Tensor, angle: Tensor) -> Tensor:
    """Return `[relu(x) cos(angle), relu(x) sin(angle)]`, `[B, H, N, D]` to `[B, H, N, 2 D]`.

    The cosine of a difference is a sum of such products; where angles lie in the first quadrant, none is negative.
    """
    x = relu_features(x)
    return torch.cat([x * angle.cos(), x * angle.sin()], dim=-1)


def cosformer_attention(q: Tensor, k: Tensor, v: Tensor, layout: AnyLayout = WHOLE) -> Tensor:
    """Attend by `s_ij = relu(q_i) . relu(k_j) cos(pi / 2 (i - j) / N)`, in a cost linear in N; tensors `[B, H, N, D]`.

    N counts prefix tokens too; i and j are positions among the N valid tokens. Everything inside is at least
    fp32.
    """
    angle = layout.positions(q) * (0.5 * math.pi / layout.num_tokens(q))
    return linear_attention(q, k, v, layout, phi=turned_features, positions=angle)
