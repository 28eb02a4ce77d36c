"""Longformer: a sliding window and global tokens (Beltagy et al. 2020, arXiv 2004.05150), on a map.

Letters: B batch, H heads, N = Y * X tokens of a map of Y rows and X columns, row by row, D channels of a head, G global
tokens.
"""

import torch
from torch import Tensor

from soft_vit.ops.layout import Layout
from soft_vit.ops.softmax import dot_product_attention
from soft_vit.ops.windows import window_attention


def global_tokens(layout: Layout, global_grid: tuple[int, int], device: torch.device) -> Tensor:
    """Return the indices `[G]` of all prefix tokens, then of those at the centres of the cells of global_grid."""
    P, feat_size = layout.num_prefix_tokens, layout.grid_size
    sides = ((side, min(side, cells)) for side, cells in zip(feat_size, global_grid, strict=True))
    rows, columns = ((2 * torch.arange(n, device=device) + 1) * length // (2 * n) for length, n in sides)
    positions = (rows[:, None] * feat_size[1] + columns).flatten()
    return torch.cat([torch.arange(P, device=device), P + positions]) if P else positions


def longformer_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_global: Tensor,
    k_global: Tensor,
    v_global: Tensor,
    layout: Layout,
    kernel_size: int,
    global_grid: tuple[int, int],
    dropout_p: float = 0.0,
    fused: bool = True,
) -> Tensor:
    """Let each token attend to those around it and to the global ones, and these to all; see `global_tokens`.

    q, k, v and the result: `[B, H, P + N, D]`. q_global `[B, H, G, D]`, k_global and v_global `[B, H, P + N, D]`: the
    queries of the global tokens, and the keys and values that they attend to. kernel_size: side of the neighbourhood,
    odd. fused: see `dot_product_attention`.
    """
    index, how = global_tokens(layout, global_grid, q.device), (dropout_p, fused)
    # One softmax over the tokens around one and the global ones: a global token in a window counts once.
    is_global = (torch.arange(q.shape[2], device=q.device)[:, None] == index).any(1)[layout.num_prefix_tokens :]
    seen = torch.cat([torch.ones_like(index, dtype=torch.bool), ~is_global])[None]
    others = (k[:, :, index], v[:, :, index])
    q, k, v = map(layout.grid, (q, k, v))
    x = window_attention(q, k, v, layout.grid_size, kernel_size // 2, others, seen, *how)
    global_x = dot_product_attention(q_global, k_global, v_global, None, *how)
    return layout.pad_prefix(x).index_copy(2, index, global_x.to(x.dtype))
