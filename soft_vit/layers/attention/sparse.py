"""Local and dilated attention in one (Sparse Transformer, Child et al. 2019, arXiv 1904.10509, here on a map)."""

from typing import Any

from torch import Tensor

from soft_vit.layers.attention.base import ScoreAttention, Traits
from soft_vit.layers.attention.local import check_kernel_size
from soft_vit.ops.layout import Layout
from soft_vit.ops.map import sparse_attention
from soft_vit.ops.numerics import at_least

NO_MASK = "its dilation depends on the number of tokens; set dilation, such as 4"


def default_dilation(feat_size: tuple[int, int]) -> int:
    """Return `N^(1/4)`, rounded: `N / dilation^2` dilated and `dilation^2` near keys are then both about `N^(1/2)`.

    In one row or column, `N^(1/2)` for the same reason.
    """
    # A number, as symbols of sizes have no fractional powers.
    power = 0.5 if 1 in feat_size else 0.25
    return max(1, round((feat_size[0] * feat_size[1]) ** power))


class SparseAttention(ScoreAttention):
    """`sum_j softmax_j(q_i . k_j / sqrt(d)) v_j` over the neighbours j of i and those at multiples of a dilation.

    The published "factorised" patterns belong to different heads or layers. Here every head has their union, which the
    publication calls merged heads. A token in both patterns counts once.

    dilation: by default it grows with the map as `N^(1/4)`, which costs about `N^1.5`; one k costs `N^2/k^2`.
    kernel_size: side of the neighbourhood, odd; by default the smallest that is at least the dilation and 3. Then two
        layers join each pair of tokens, and three those near opposite edges of the map.
    """

    traits = Traits("N^1.5", "see all tokens, and all see them, by softmax attention", mask_refusal=NO_MASK)

    def __init__(
        self, dim: int, num_heads: int, *, kernel_size: int | None = None, dilation: int | None = None, **options: Any
    ) -> None:
        super().__init__(dim, num_heads, **options)
        self.kernel_size = None if kernel_size is None else check_kernel_size(kernel_size)
        self.dilation = None if dilation is None else at_least("dilation", dilation)
        if dilation is not None:
            self.declare(cost="N^2/k^2", mask_refusal=None)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        dilation = self.dilation or default_dilation(layout.grid_size)
        kernel_size = self.kernel_size or max(3, dilation + 1 - dilation % 2)
        return sparse_attention(q, k, v, layout, kernel_size, dilation, self.dropout_p, self.fused_attn)
