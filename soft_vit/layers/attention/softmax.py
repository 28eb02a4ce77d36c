"""Multi-head scaled dot-product attention (Vaswani et al. 2017, arXiv 1706.03762)."""

from typing import ClassVar

from torch import Tensor

from soft_vit.layers.attention.base import ScoreAttention, Traits
from soft_vit.ops.layout import Layout
from soft_vit.ops.softmax import softmax_attention


class SoftmaxAttention(ScoreAttention):
    """`softmax(Q K^T / sqrt(d)) V` over all tokens; the last stage of every SOFT model."""

    traits = Traits("N^2", mask_refusal=None, needs_grid=False, takes_context=True)

    projections: ClassVar[dict[str, str]] = {"q": "q", "kv": "kv"}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Queries, keys and values `[B, heads, P + N, C / heads]` to the result of that shape."""
        return softmax_attention(q, k, v, layout, self.dropout_p, self.fused_attn)


class SoftmaxOneAttention(SoftmaxAttention):
    """`sum_j exp(s_ij) v_j / (1 + sum_j exp(s_ij))`, `s = Q K^T / sqrt(d)`: weights sum to less than 1.

    Miller 2023, "Attention Is Off By One", evanmiller.org/attention-is-off-by-one.html.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return softmax_attention(q, k, v, layout, self.dropout_p, self.fused_attn, add_one=True)
