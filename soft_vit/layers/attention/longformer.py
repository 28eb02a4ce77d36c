"""Longformer: a sliding window and global tokens (Beltagy et al. 2020, arXiv 2004.05150), on a map.

Letters: B batch, H heads, N = Y * X tokens of a map of Y rows and X columns, row by row, D channels of a head, G global
tokens.
"""

from typing import Any

import torch
from timm.layers import get_device_dtype
from torch import Tensor, nn

from soft_vit.layers.attention.base import Rotate, ScoreAttention, Traits, grid_limit, split_heads, split_parts
from soft_vit.layers.attention.local import check_kernel_size
from soft_vit.layers.mlp import linear
from soft_vit.ops.layout import Layout
from soft_vit.ops.softmax import dot_product_attention
from soft_vit.ops.windows import window_attention

NO_MASK = "its global tokens are at fixed positions of the full map"


def global_positions(feat_size: tuple[int, int], global_grid: tuple[int, int], device: torch.device) -> Tensor:
    """Return the indices of the tokens at the centres of the cells of global_grid, `[G]`, without duplicates."""
    rows, columns = (
        torch.tensor([(2 * i + 1) * length // (2 * count) for i in range(count)], device=device)
        for length, count in ((side, min(side, cells)) for side, cells in zip(feat_size, global_grid, strict=True))
    )
    return (rows[:, None] * feat_size[1] + columns).flatten()


def global_tokens(layout: Layout, global_grid: tuple[int, int], device: torch.device) -> Tensor:
    """Return the indices of all prefix tokens and, after them, of the map's global tokens: `[G]`."""
    P, positions = layout.num_prefix_tokens, global_positions(layout.feat_size, global_grid, device)
    return torch.cat([torch.arange(P, device=device), P + positions]) if P else positions


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
        self.q_global = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.kv_global = nn.Linear(dim, 2 * dim, bias=qkv_bias, **dd)
        # Swaps start them as the others, as published.
        self.projections = {**self.projections, "q_global": "q", "kv_global": "kv"}  # type: ignore[misc]

    def attend(  # type: ignore[override]  # the global tokens have projections of their own
        self, q: Tensor, k: Tensor, v: Tensor, q_global: Tensor, k_global: Tensor, v_global: Tensor, layout: Layout
    ) -> Tensor:
        """Mix values `[B, heads, P + N, C / heads]` to a result of that shape.

        q_global `[B, heads, G, C / heads]`, k_global and v_global: the queries of the global tokens, and the keys and
        values that they attend to.
        """
        index, how = global_tokens(layout, self.global_grid, q.device), (self.dropout_p, self.fused_attn)
        # One softmax over the tokens around one and the global ones: a global token in a window counts once.
        is_global = (torch.arange(q.shape[2], device=q.device)[:, None] == index).any(1)[layout.num_prefix_tokens :]
        seen = torch.cat([torch.ones_like(index, dtype=torch.bool), ~is_global])[None]
        others = (k[:, :, index], v[:, :, index])
        q, k, v = map(layout.grid, (q, k, v))
        x = window_attention(q, k, v, layout.feat_size, self.kernel_size // 2, others, seen, *how)
        global_x = dot_product_attention(q_global, k_global, v_global, None, *how)
        return layout.pad_prefix(x).index_copy(2, index, global_x.to(x.dtype))

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q, k, v = split_parts(linear(x, self.qkv), 3, self.num_heads)
        x_global = x[:, global_tokens(layout, self.global_grid, x.device)]
        q_global = split_heads(self.q_global(x_global), self.num_heads)
        k_global, v_global = split_parts(self.kv_global(x), 2, self.num_heads)
        q, q_global, k, k_global = self.q_norm(q), self.q_norm(q_global), self.k_norm(k), self.k_norm(k_global)
        x = self.attend(q, k, v, q_global, k_global, v_global, layout)
        return self.output(x)
