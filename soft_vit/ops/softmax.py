"""Multi-head scaled dot-product attention (Vaswani et al. 2017, arXiv 1706.03762)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.layout import Layout


def dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout_p: float = 0.0, fused: bool = True
) -> Tensor:
    """`softmax(Q K^T / sqrt(D)) V` for queries `[..., N, D]`, keys `[..., M, D]`, values `[..., M, C]`: `[..., N, C]`.

    mask: bool, broadcast to `[..., N, M]`: the keys that a query sees, at least one. dropout_p: rate at which weights
    are dropped. fused: use torch's kernels, which keep no N x M matrix; otherwise one step after the other.
    """
    if fused:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_p)
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    if dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    return weights @ v


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, dropout_p: float = 0.0, fused: bool = True, one: bool = False
) -> Tensor:
    """`dot_product_attention` to all tokens that count; q, k, v and the result `[B, H, P + N, D]`.

    one: one more in the denominator, `exp(s_ij) / (1 + sum_j exp(s_ij))`: a key and a value of zero.
    """
    mask = layout.key_mask
    if one:
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        mask = None if mask is None else F.pad(mask, (0, 1), value=True)
    return dot_product_attention(q, k, v, mask, dropout_p, fused)
