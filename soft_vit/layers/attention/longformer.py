"""Longformer: a sliding window and global tokens (Beltagy et al. 2020, arXiv 2004.05150), on a map."""

from typing import Any

from timm.layers import get_device_dtype
from torch import Tensor, nn

from soft_vit.layers.attention.base import Rotate, ScoreAttention, Traits
from soft_vit.layers.attention.local import check_kernel_size
from soft_vit.layers.plain import Linear
from soft_vit.ops.landmarks import grid_limit
from soft_vit.ops.layout import Layout, split_heads, split_parts
from soft_vit.ops.longformer import global_tokens, longformer_attention

NO_MASK = "its global tokens are at fixed positions of the full map"


class LongformerAttention(ScoreAttention):
    """`sum_j softmax_j(q_i . k_j / sqrt(d)) v_j` over the tokens j around i and global ones, which attend to all.

    The global tokens are those of the map at the centres of a coarse grid, instead of the paper's task tokens. Their
    information reaches every other token in the next block. As in the paper, they attend by projections of their own.
    When others attend to them, they are projected like any token.

    kernel_size: side of the neighbourhood, odd.
    global_grid: rows and columns of the grid of global tokens; a map with fewer has as many as it has rows or columns.
    """

    traits = Traits("N", "global tokens", mask_refusal=NO_MASK, qk="some")
    qkv: nn.Linear

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        kernel_size: int = 7,
        global_grid: tuple[int, int] = (2, 2),
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, **options)
        dd = get_device_dtype(self)
        self.kernel_size = check_kernel_size(kernel_size)
        self.global_grid = grid_limit("global_grid", global_grid, self.sequence) or (1, 1)
        self.q_global = Linear(dim, dim, bias=qkv_bias, **dd)
        self.kv_global = Linear(dim, 2 * dim, bias=qkv_bias, **dd)
        # Swaps start them as the others, as published.
        self.projections = {**self.projections, "q_global": "q", "kv_global": "kv"}  # type: ignore[misc]

    def attend(  # type: ignore[override]  # the global tokens have projections of their own
        self, q: Tensor, k: Tensor, v: Tensor, q_global: Tensor, k_global: Tensor, v_global: Tensor, layout: Layout
    ) -> Tensor:
        """Mix values `[B, H, P + N, D]` to a result of that shape, as `longformer_attention`."""
        of_global, how = (q_global, k_global, v_global), (self.dropout_p, self.fused_attn)
        return longformer_attention(q, k, v, *of_global, layout, self.kernel_size, self.global_grid, *how)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q, k, v = split_parts(self.qkv(x), 3, self.num_heads)
        x_global = x[:, global_tokens(layout, self.global_grid, x.device)]
        q_global = split_heads(self.q_global(x_global), self.num_heads)
        k_global, v_global = split_parts(self.kv_global(x), 2, self.num_heads)
        q, q_global, k, k_global = self.q_norm(q), self.q_norm(q_global), self.k_norm(k), self.k_norm(k_global)
        return self.output(self.attend(q, k, v, q_global, k_global, v_global, layout))
