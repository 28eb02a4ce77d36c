"""Efficient attention: a softmax over features and one over tokens (Shen et al. 2018, arXiv 1812.01243)."""

from torch import Tensor

from soft_vit.ops.layout import WHOLE
from soft_vit.ops.numerics import at_least_float32, full_precision
from soft_vit.ops.packed import AnyLayout


def efficient_attention(q: Tensor, k: Tensor, v: Tensor, layout: AnyLayout = WHOLE) -> Tensor:
    """Return `softmax(Q) (softmax(K)^T V)` `[B, H, N, Dv]` of q `[B, H, N, D]`, k `[B, H, M, D]` and v `[B, H, M, Dv]`.

    Queries are normalised over their features, each feature of the keys over tokens. layout: of the keys,
    of which padding is left out. At least fp32 inside, since weights of many tokens are no normal numbers of fp16.
    """
    q, k, wide = map(at_least_float32, (q, k, v))
    with full_precision(q):
        x = q.softmax(-1) @ layout.total(layout.softmax(k).mT @ layout.zero_padded(wide))
    return x.to(v.dtype)
