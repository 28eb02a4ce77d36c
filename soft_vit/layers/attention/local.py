"""Softmax attention to a neighbourhood on the map."""

from typing import Any

from torch import Tensor

from soft_vit.layers.attention.base import ScoreAttention, Traits
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least
from soft_vit.ops.windows import local_attention


def check_kernel_size(kernel_size: int) -> int:
    """Return kernel_size; ValueError unless it is odd and positive."""
    if at_least("kernel_size", kernel_size) % 2 == 0:
        raise ValueError(f"kernel_size must be odd and positive, got kernel_size={kernel_size}.")
    return kernel_size


class LocalAttention(ScoreAttention):
    """`sum_j softmax_j(q_i . k_j / sqrt(d)) v_j` over the kernel_size x kernel_size tokens j around i; fewer at edges.

    kernel_size: side of the neighbourhood, odd.
    """

    traits = Traits("N", "see all tokens, and all see them, by softmax attention", mask_refusal=None)

    def __init__(self, dim: int, num_heads: int, *, kernel_size: int = 7, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        self.kernel_size = check_kernel_size(kernel_size)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return local_attention(q, k, v, layout, self.kernel_size, self.dropout_p, self.fused_attn)
