"""Softmax attention of the tokens of a map to their neighbourhoods, in tiles of the map and the tokens around each.

Letters: B batch, H heads, P prefix tokens, N = Y * X tokens of a map of Y rows and X columns, row by row, D channels of
a head; G tiles of L queries and S keys each.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.chunked import Arguments, Part, computes_parts, in_parts
from soft_vit.ops.layout import Layout, Size
from soft_vit.ops.softmax import attention_in_groups, attention_with_prefix

# 64 queries are one block of a fused kernel, and their neighbourhoods overlap enough.
TILE_SIDE = 8

# Bytes of the queries of the rows of tiles that are computed together, so that intermediates stay in a core's cache.
CHUNK_BYTES = 128 << 10

# A name, because torch.compile cannot trace `|` in annotations of inner functions.
Rows = tuple[int, int] | None
"""The first row of tiles and the one after the last; None for all."""


def axis_tiles(length: int, reach: int) -> tuple[int, int, int]:
    """Return the number of tiles along a side, their length, and how many tokens around each its queries see."""
    if length <= TILE_SIDE + 2 * reach:
        # One tile has as few keys as a tile with its neighbours would have.
        return 1, length, 0
    return -(-length // TILE_SIDE), TILE_SIDE, reach


def token_rows(feat_size: Size, reach: int, rows: tuple[int, int], with_neighbours: bool) -> tuple[int, int]:
    """Return the first row of tokens that rows of tiles read, and the one after the last; both may be off the map."""
    _, tile, halo = axis_tiles(feat_size[0], reach)
    halo = halo if with_neighbours else 0
    return rows[0] * tile - halo, rows[1] * tile + halo


def sliding_windows(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Return `x.unfold(dim, size, step)`, which is no Core ATen operator, as a selection in an exported graph."""
    if not torch.compiler.is_exporting():
        return x.unfold(dim, size, step)
    starts = step * torch.arange((x.shape[dim] - size) // step + 1, device=x.device)
    index = starts[:, None] + torch.arange(size, device=x.device)
    return x.index_select(dim, index.flatten()).unflatten(dim, (-1, size)).movedim(dim + 1, -1)


def split_tiles(x: Tensor, feat_size: Size, reach: int, with_neighbours: bool, rows: Rows = None) -> Tensor:
    """Split `[B, H, N, D]` into tiles `[B * H, G, L, D]`, or tiles with their neighbours `[B * H, G, S, D]`.

    rows: only these rows of tiles; x then has the tokens of `token_rows` alone.
    """
    (ny, ty, hy), (nx, tx, hx) = (axis_tiles(length, reach) for length in feat_size)
    first, end = token_rows(feat_size, reach, rows or (0, ny), with_neighbours)
    above, below, right = max(-first, 0), max(end - feat_size[0], 0), nx * tx - feat_size[1]
    if not with_neighbours:
        hy = hx = 0
    # Of a whole map its own height: an expression equal to it would make graphs for any size more complex.
    height = feat_size[0] if rows is None else end - first - above - below
    x = x.unflatten(2, (height, feat_size[1]))
    x = F.pad(x, (0, 0, hx, hx + right, above, below))
    x = sliding_windows(sliding_windows(x, 2, ty + 2 * hy, ty), 3, tx + 2 * hx, tx)
    # `clone`, because F.pad without padding keeps the strides of x, which a graph for any size does not know: it would
    # take copies for views and leave out `contiguous`.
    x = x.permute(0, 1, 2, 3, 5, 6, 4).clone(memory_format=torch.contiguous_format)
    return x.flatten(4, 5).flatten(2, 3).flatten(0, 1)


def merge_tiles(x: Tensor, feat_size: Size, reach: int, num_heads: int, rows: Rows = None) -> Tensor:
    """Merge tiles `[B * H, G, L, D]` to `[B, H, N, D]`: the inverse of `split_tiles` without neighbours."""
    (ny, ty, _), (nx, tx, _) = (axis_tiles(length, reach) for length in feat_size)
    first, end = rows or (0, ny)
    x = x.unflatten(2, (ty, tx)).unflatten(1, (end - first, nx)).unflatten(0, (-1, num_heads))
    x = x.permute(0, 1, 2, 4, 3, 5, 6).flatten(4, 5).flatten(2, 3)
    return x[:, :, : feat_size[0] - first * ty, : feat_size[1]].flatten(2, 3)


def axis_pairs(length: int, reach: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return whether queries and keys of each tile along a side see each other, and their distance: `[tiles, L, S]`."""
    count, tile, halo = axis_tiles(length, reach)
    start = tile * torch.arange(count, device=device)[:, None, None]
    # A query off the map takes the keys of the last one on it: without keys it would be 0 / 0.
    query = (start + torch.arange(tile, device=device)[:, None]).clamp(max=length - 1)
    key = start + torch.arange(-halo, tile + halo, device=device)
    distance = query - key
    return (distance.abs() <= reach) & (key >= 0) & (key < length), distance


def tile_mask(feat_size: Size, reach: int, device: torch.device, without_phase: int = 0, rows: Rows = None) -> Tensor:
    """Return which keys of a tile and its neighbours are on the map and in reach of each query: bool `[1, G, L, S]`.

    without_phase: leave out pairs whose distances in y and x are both multiples of this number. rows: only these rows
    of tiles.
    """
    (see_y, y), (see_x, x) = (axis_pairs(length, reach, device) for length in feat_size)
    if rows is not None:
        see_y, y = see_y[slice(*rows)], y[slice(*rows)]
    y_axes, x_axes = (slice(None), None, slice(None), None, slice(None), None), (None, slice(None)) * 3
    mask = see_y[y_axes] & see_x[x_axes]
    if without_phase:
        mask = mask & ~((y % without_phase == 0)[y_axes] & (x % without_phase == 0)[x_axes])
    return mask.flatten(4, 5).flatten(2, 3).flatten(0, 1)[None]


def window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feat_size: Size,
    reach: int,
    others: Sequence[Tensor] = (),
    seen: Tensor | None = None,
    dropout_p: float = 0.0,
    fused: bool = True,
) -> Tensor:
    """Return attention of each token to those at most reach away in y and in x, and to all of others.

    q, k, v and the result: `[B, H, N, D]`. others: empty, or keys and values `[B, H, P, D]`. seen: bool
    `[B or 1, P + N]`, which of others and of the map are not padding; None if all. fused: see `dot_product_attention`.
    For large N on a CPU, rows of tiles are computed one after the other, see `in_parts`.
    """
    num_others = others[0].shape[2] if others else 0
    args: tuple[Any, ...] = (q, k, v, None if seen is None else seen[:, None, num_others:, None], *others)

    def attend(rows: Rows, q: Tensor, k: Tensor, v: Tensor, seen_map: Tensor | None, *others: Tensor) -> tuple[Tensor]:
        split = partial(split_tiles, feat_size=feat_size, reach=reach, rows=rows)
        tiles, keys = (partial(split, with_neighbours=with_neighbours) for with_neighbours in (False, True))
        merge = partial(merge_tiles, feat_size=feat_size, reach=reach, rows=rows)
        here = None
        if seen is not None and seen_map is not None:
            here = torch.cat([seen[:, :num_others], seen_map[:, 0, :, 0]], dim=1)
        mask = tile_mask(feat_size, reach, q.device, rows=rows)
        return (attention_in_groups(tiles, keys, merge, mask, q, k, v, others, here, dropout_p, fused),)

    def cut(rows: tuple[int, int], args: Arguments) -> Arguments:
        spans = (token_rows(feat_size, reach, rows, with_neighbours) for with_neighbours in (False, True, True, True))
        tokens = (slice(max(first, 0) * feat_size[1], end * feat_size[1]) for first, end in spans)
        return [*(x if x is None else x[:, :, span] for x, span in zip(args[:4], tokens, strict=True)), *args[4:]]

    if not computes_parts(q):
        return attend(None, *args)[0]
    count, tile, _ = axis_tiles(feat_size[0], reach)
    row_bytes = tile * feat_size[1] * q.shape[0] * q.shape[1] * q.shape[3] * q.element_size()
    step = max(1, CHUNK_BYTES // row_bytes)
    spans = [(first, min(first + step, count)) for first in range(0, count, step)]
    return in_parts([Part(partial(cut, rows), partial(attend, rows)) for rows in spans], 2, *args)[0]


def local_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, kernel_size: int, dropout_p: float = 0.0, fused: bool = True
) -> Tensor:
    """Return attention of each token to the kernel_size x kernel_size tokens around it, cut at the edges of the map.

    q, k, v: `[B, H, P + N, D]`; the result has v's shape. kernel_size: odd. Prefix tokens see all tokens, and all
    tokens see them. fused: see `dot_product_attention`. Tiles of the map are computed with their neighbours, so a query
    has at most `(8 + kernel_size - 1)^2` keys.
    """
    attend = partial(window_attention, feat_size=layout.grid_size, reach=kernel_size // 2)
    return attention_with_prefix(attend, q, k, v, layout, dropout_p, fused)
