"""Gaussian attention without decomposition (SOFT, arXiv 2110.11945, Eq. 4 and 5)."""

from typing import Any, ClassVar

from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, merge_heads, split_heads
from soft_vit.ops import gaussian_attention
from soft_vit.ops.layout import Layout


def gaussian_to_all(q: Tensor, v: Tensor, normalize: bool, layout: Layout) -> Tensor:
    """`gaussian_attention` of scaled queries and values `[B, H, P + N, D]` to all tokens that count."""
    return gaussian_attention(q, v, normalize, layout.key_mask)


class GaussianAttention(Attention):
    """`exp(-||q_i - q_j||^2 / (2 sqrt(d))) V` over all pairs of tokens, the key being the query.

    normalize: scale the kernel symmetrically by `rowsum^(-1/2)` on both sides (arXiv 2207.03341).
    """

    cost: str = "N^2"
    key_is_query: ClassVar[bool] = True
    needs_grid: ClassVar[bool] = False
    no_mask: str = ""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        normalize: bool = False,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
        **options: Any,
    ) -> None:
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(dim, num_heads, **dd, **options)
        self.normalize = normalize
        self.q = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.v = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.proj = nn.Linear(dim, dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop)

    def attend(self, q: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Scaled queries and values `[B, heads, P + N, C / heads]` to the result of that shape."""
        return gaussian_to_all(q, v, self.normalize, layout)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q = self.queries(split_heads(self.q(x), self.num_heads), rotate) * self.head_dim**-0.25
        x = self.attend(q, split_heads(self.v(x), self.num_heads), layout)
        return self.proj_drop(self.proj(merge_heads(x)))
