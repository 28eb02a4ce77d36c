"""Multi-head scaled dot-product attention (Vaswani et al. 2017, arXiv 1706.03762)."""

from typing import Any, ClassVar

from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, merge_heads, split_heads, split_parts
from soft_vit.ops.layout import Layout
from soft_vit.ops.softmax import softmax_attention


class SoftmaxAttention(Attention):
    """`softmax(Q K^T / sqrt(d)) V` over all tokens; the last stage of every SOFT model."""

    cost: str = "N^2"
    needs_grid: ClassVar[bool] = False
    no_mask: str = ""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
        **options: Any,
    ) -> None:
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(dim, num_heads, **dd, **options)
        self.attn_drop = attn_drop
        self.q = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.kv = nn.Linear(dim, 2 * dim, bias=qkv_bias, **dd)
        self.proj = nn.Linear(dim, dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Queries, keys and values `[B, heads, P + N, C / heads]` to the result of that shape."""
        return softmax_attention(q, k, v, layout, self.dropout_p, self.fused_attn)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q = self.queries(split_heads(self.q(x), self.num_heads), rotate)
        k, v = split_parts(self.kv(x), 2, self.num_heads)
        return self.proj_drop(self.proj(merge_heads(self.attend(q, self.keys(k, rotate), v, layout))))


class SoftmaxOneAttention(SoftmaxAttention):
    """`sum_j exp(s_ij) v_j / (1 + sum_j exp(s_ij))`, `s = Q K^T / sqrt(d)`: a token may attend to nothing.

    Miller 2023, "Attention Is Off By One", evanmiller.org/attention-is-off-by-one.html.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return softmax_attention(q, k, v, layout, self.dropout_p, self.fused_attn, one=True)
