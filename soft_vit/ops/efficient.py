"""Efficient attention: a softmax over features and one over tokens (Shen et al. 2018, arXiv 1812.01243)."""

from torch import Tensor

from soft_vit.ops.layout import WHOLE
from soft_vit.ops.packed import AnyLayout


def efficient_attention(q: Tensor, k: Tensor, v: Tensor, layout: AnyLayout = WHOLE) -> Tensor:
    """Return `softmax(Q) (softmax(K)^T V)` `[B, H, N, Dv]` of q `[B, H, N, D]`, k `[B, H, M, D]` and v `[B, H, M, Dv]`.

    Queries are normalised over their features, each feature of the keys over tokens. layout: of the keys,
    of which padding is left out.
    """
    return q.softmax(-1) @ layout.total(layout.softmax(k).mT @ layout.zero_padded(v))
