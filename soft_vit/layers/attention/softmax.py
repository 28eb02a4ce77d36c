"""Multi-head scaled dot-product attention (Vaswani et al. 2017, arXiv 1706.03762)."""

from typing import ClassVar

from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, check_heads, merge_heads, split_heads, split_parts
from soft_vit.ops.softmax import dot_product_attention


class SoftmaxAttention(Attention):
    """Softmax attention between all tokens; the last stage of every SOFT model."""

    cost: str = "N^2"
    needs_grid: ClassVar[bool] = False

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: tuple[int, int],
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.head_dim = check_heads(dim, num_heads)
        self.attn_drop = attn_drop
        self.q = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.kv = nn.Linear(dim, 2 * dim, bias=qkv_bias, **dd)
        self.proj = nn.Linear(dim, dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Queries, keys and values `[B, heads, N, C / heads]` to the result of that shape."""
        return dot_product_attention(q, k, v, dropout_p=self.dropout_p, fused=self.fused_attn)

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        q = split_heads(self.q(x), self.num_heads)
        k, v = split_parts(self.kv(x), 2, self.num_heads)
        return self.proj_drop(self.proj(merge_heads(self.attend(q, k, v))))
