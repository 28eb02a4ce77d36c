"""Softmax attention to the tokens at multiples of a dilation on the map."""

from typing import Any

from torch import Tensor

from soft_vit.layers.attention.base import ScoreAttention, Traits
from soft_vit.ops.layout import Layout
from soft_vit.ops.map import atrous_attention
from soft_vit.ops.numerics import at_least


class AtrousAttention(ScoreAttention):
    """`sum_j softmax_j(q_i . k_j / sqrt(d)) v_j` over the tokens j at multiples of a dilation k from i, in y and x.

    dilation: the k; by default sr_ratio, which gives each token 49 keys in every stage at 224.
    """

    traits = Traits("N^2/k^2", "see all tokens, and all see them, by softmax attention", mask_refusal=None)

    def __init__(
        self, dim: int, num_heads: int, *, sr_ratio: int = 1, dilation: int | None = None, **options: Any
    ) -> None:
        super().__init__(dim, num_heads, sr_ratio=sr_ratio, **options)
        self.dilation = at_least("dilation", sr_ratio if dilation is None else dilation)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return atrous_attention(q, k, v, layout, self.dilation, self.dropout_p, self.fused_attn)
