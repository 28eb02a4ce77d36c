"""Longformer: a sliding window and global tokens (Beltagy et al. 2020, arXiv 2004.05150), on a map.

Letters: B batch, H heads, N = Y * X tokens of a map of Y rows and X columns, row by row, D channels of a head, G global
tokens.
"""

import torch
import torch.nn.functional as F
from timm.layers import to_2tuple
from torch import Tensor, nn

from soft_vit.layers.attention.base import SelfAttention, merge_heads, split_heads, split_parts
from soft_vit.layers.attention.local import check_kernel_size
from soft_vit.ops.map import merge_tiles, split_tiles, tile_mask
from soft_vit.ops.softmax import dot_product_attention


def global_positions(feat_size: tuple[int, int], global_grid: tuple[int, int], device: torch.device) -> Tensor:
    """The tokens at the centres of the cells of global_grid, or of every row or column where those are fewer: `[G]`."""
    rows, columns = (
        torch.tensor([(2 * i + 1) * length // (2 * count) for i in range(count)], device=device)
        for length, count in ((side, min(side, cells)) for side, cells in zip(feat_size, global_grid, strict=True))
    )
    return (rows[:, None] * feat_size[1] + columns).flatten()


def take_global_tokens(x: Tensor, feat_size: tuple[int, int], global_grid: tuple[int, int]) -> Tensor:
    """The global ones of tokens `[B, N, C]`: `[B, G, C]`."""
    return x[:, global_positions(feat_size, global_grid, x.device)]


def window_and_global_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feat_size: tuple[int, int],
    kernel_size: int,
    global_grid: tuple[int, int],
    dropout_p: float = 0.0,
    fused: bool = True,
) -> Tensor:
    """Scaled dot-product attention of each token to the kernel_size x kernel_size tokens around it and the global ones.

    q, k, v: `[B, H, N, D]`; the result has v's shape. One softmax over the union: a global token in a window counts
    once.
    """
    reach, num_heads = kernel_size // 2, q.shape[1]
    index = global_positions(feat_size, global_grid, q.device)
    is_global = (torch.arange(q.shape[2], device=q.device)[:, None] == index).any(1)
    in_window = tile_mask(feat_size, reach, q.device)
    in_window = in_window & ~split_tiles(is_global[None, None, :, None], feat_size, reach, with_neighbours=True).mT
    mask = F.pad(in_window, (0, index.shape[0]), value=True)
    k, v = (
        torch.cat(
            [tiles, x[:, :, index].flatten(0, 1)[:, None].expand(-1, tiles.shape[1], -1, -1)],
            dim=2,
        )
        for x, tiles in ((x, split_tiles(x, feat_size, reach, with_neighbours=True)) for x in (k, v))
    )
    q = split_tiles(q, feat_size, reach, with_neighbours=False)
    x = dot_product_attention(q, k, v, mask, dropout_p, fused)
    return merge_tiles(x, feat_size, reach, num_heads)


def put_global_tokens(x: Tensor, global_x: Tensor, feat_size: tuple[int, int], global_grid: tuple[int, int]) -> Tensor:
    """Tokens `[B, H, N, D]`, the global ones among them replaced by global_x `[B, H, G, D]`."""
    return x.index_copy(2, global_positions(feat_size, global_grid, x.device), global_x.to(x.dtype))


# Leaves of symbolic tracing: they look at sizes.
torch.fx.wrap("take_global_tokens")
torch.fx.wrap("window_and_global_attention")
torch.fx.wrap("put_global_tokens")


class LongformerAttention(SelfAttention):
    """Each token attends to the kernel_size x kernel_size tokens around it and to the global ones, which attend to all.

    The global tokens are tokens of the map: those at the centres of a coarse grid. Thus no token is added, and what
    they gather reaches every other token in the next block, as from the paper's task tokens. As there, they have
    projections of their own for what they attend to; where they are attended to, they are projected like any token.

    kernel_size: side of the neighbourhood, odd.
    global_grid: rows and columns of the grid of global tokens; a map with fewer has as many as it has rows or columns.
    """

    cost: str = "N"

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: tuple[int, int],
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        kernel_size: int = 7,
        global_grid: int | tuple[int, int] = (2, 2),
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        dd = {"device": device, "dtype": dtype}
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, proj_drop=proj_drop, **dd)
        self.attn_drop = attn_drop
        self.kernel_size = check_kernel_size(kernel_size)
        self.global_grid = tuple(to_2tuple(global_grid))
        if len(self.global_grid) != 2 or min(self.global_grid) < 1:
            raise ValueError(
                f"global_grid={self.global_grid} has no global token; use two positive numbers, such as (2, 2), or the "
                f"attention 'local', which has none."
            )
        self.q_global = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.kv_global = nn.Linear(dim, 2 * dim, bias=qkv_bias, **dd)

    def attend(  # type: ignore[override]  # the global tokens have projections of their own
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_global: Tensor,
        k_global: Tensor,
        v_global: Tensor,
        feat_size: tuple[int, int],
    ) -> Tensor:
        """All `[B, heads, N, C / heads]`, q_global `[B, heads, G, C / heads]`, to the result of v's shape.

        The ones with `global` in their names are of the global tokens: what these look with, look at, and gather.
        """
        pattern, how = (feat_size, self.kernel_size, self.global_grid), (self.dropout_p, self.fused_attn)
        x = window_and_global_attention(q, k, v, *pattern, *how)
        global_x = dot_product_attention(q_global, k_global, v_global, None, *how)
        return put_global_tokens(x, global_x, feat_size, self.global_grid)

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        q, k, v = split_parts(self.qkv(x), 3, self.num_heads)
        q_global = split_heads(self.q_global(take_global_tokens(x, feat_size, self.global_grid)), self.num_heads)
        k_global, v_global = split_parts(self.kv_global(x), 2, self.num_heads)
        x = self.attend(q, k, v, q_global, k_global, v_global, feat_size)
        return self.proj_drop(self.proj(merge_heads(x)))
