"""Softmax attention to a neighbourhood on the map."""

from typing import ClassVar

import torch
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention
from soft_vit.ops.layout import FeatSize, Layout
from soft_vit.ops.windows import local_attention

# A leaf of symbolic tracing: it looks at sizes.
torch.fx.wrap("local_attention")


def check_kernel_size(kernel_size: int) -> int:
    """Return kernel_size; ValueError unless it is odd and positive."""
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f"kernel_size={kernel_size} has no centre; use an odd number of tokens, such as 7.")
    return kernel_size


class LocalAttention(SelfAttention):
    """`sum_j softmax_j(q_i . k_j / sqrt(d)) v_j` over the kernel_size x kernel_size tokens j around i; fewer at edges.

    kernel_size: side of the neighbourhood, odd.
    """

    cost: str = "N"
    prefix: ClassVar[str] = "see all tokens, and all see them, by softmax attention"
    no_mask: str = ""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: FeatSize,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        kernel_size: int = 7,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__(
            dim, num_heads, feat_size=feat_size, qkv_bias=qkv_bias, proj_drop=proj_drop, device=device, dtype=dtype
        )
        self.attn_drop = attn_drop
        self.kernel_size = check_kernel_size(kernel_size)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return local_attention(q, k, v, layout, self.kernel_size, self.dropout_p, self.fused_attn)
