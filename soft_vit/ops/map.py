"""Softmax attention restricted to a pattern on the token map: a neighbourhood, a dilated grid, or both.

Letters: B batch, H heads, N = Y * X tokens of a map of Y rows and X columns, row by row, D channels of a head; G groups
of L queries and S keys each.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.numerics import at_least_float32
from soft_vit.ops.softmax import dot_product_attention

# 64 queries are one block of a fused kernel, and their keys overlap enough that few are read twice.
TILE_SIDE = 8

# Weights are divided by their sum behind the product with values: fp16 holds sums of many of these, and small ones.
LARGEST_WEIGHT = 1 / 64


def axis_tiles(length: int, reach: int) -> tuple[int, int, int]:
    """Tiles of one side of a map: their number, their length, and how many tokens of the neighbours each one needs."""
    if length <= TILE_SIDE + 2 * reach:
        # One tile has no more keys than a tile with its neighbours would have.
        return 1, length, 0
    return -(-length // TILE_SIDE), TILE_SIDE, reach


def split_tiles(x: Tensor, feat_size: tuple[int, int], reach: int, with_neighbours: bool) -> Tensor:
    """`[B, H, N, D]` to the tiles of the map `[B * H, G, L, D]`, or each with its neighbours, `[B * H, G, S, D]`."""
    (ny, ty, hy), (nx, tx, hx) = (axis_tiles(length, reach) for length in feat_size)
    x = x.unflatten(2, feat_size)
    below, right = ny * ty - feat_size[0], nx * tx - feat_size[1]
    if with_neighbours:
        x = F.pad(x, (0, 0, hx, hx + right, hy, hy + below)).unfold(2, ty + 2 * hy, ty).unfold(3, tx + 2 * hx, tx)
    else:
        x = F.pad(x, (0, 0, 0, right, 0, below)).unfold(2, ty, ty).unfold(3, tx, tx)
    # Where nothing is padded, F.pad keeps the order of x in memory. A graph for any size knows nothing of that: it
    # would take for views what are none, and leave out `contiguous`.
    x = x.permute(0, 1, 2, 3, 5, 6, 4).clone(memory_format=torch.contiguous_format)
    return x.flatten(4, 5).flatten(2, 3).flatten(0, 1)


def merge_tiles(x: Tensor, feat_size: tuple[int, int], reach: int, num_heads: int) -> Tensor:
    """The inverse of `split_tiles` without neighbours: `[B * H, G, L, D]` to `[B, H, N, D]`."""
    (ny, ty, _), (nx, tx, _) = (axis_tiles(length, reach) for length in feat_size)
    x = x.unflatten(2, (ty, tx)).unflatten(1, (ny, nx)).unflatten(0, (-1, num_heads))
    x = x.permute(0, 1, 2, 4, 3, 5, 6).flatten(4, 5).flatten(2, 3)
    return x[:, :, : feat_size[0], : feat_size[1]].flatten(2, 3)


def axis_pairs(length: int, reach: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For the queries and keys of each tile of one side, `[tiles, L, S]`: do they see each other; their distance."""
    count, tile, halo = axis_tiles(length, reach)
    start = tile * torch.arange(count, device=device)[:, None, None]
    # A query beyond the map sees what the last one sees: one that sees nothing would be 0 / 0.
    query = (start + torch.arange(tile, device=device)[:, None]).clamp(max=length - 1)
    key = start + torch.arange(-halo, tile + halo, device=device)
    distance = query - key
    return (distance.abs() <= reach) & (key >= 0) & (key < length), distance


def tile_mask(feat_size: tuple[int, int], reach: int, device: torch.device, without_phase: int = 0) -> Tensor:
    """Which keys of a tile and its neighbours are within reach of each query, on the map: bool `[1, G, L, S]`.

    without_phase: leave out the pairs whose distances in y and x are both multiples of this number.
    """
    (see_y, y), (see_x, x) = (axis_pairs(length, reach, device) for length in feat_size)
    y_axes, x_axes = (slice(None), None, slice(None), None, slice(None), None), (None, slice(None)) * 3
    mask = see_y[y_axes] & see_x[x_axes]
    if without_phase:
        mask = mask & ~((y % without_phase == 0)[y_axes] & (x % without_phase == 0)[x_axes])
    return mask.flatten(4, 5).flatten(2, 3).flatten(0, 1)[None]


def split_phases(x: Tensor, feat_size: tuple[int, int], dilation: int) -> Tensor:
    """`[B, H, N, D]` to the groups of equal phase (y mod dilation, x mod dilation): `[B * H, dilation^2, L, D]`."""
    below, right = (-length % dilation for length in feat_size)
    x = F.pad(x.unflatten(2, feat_size), (0, 0, 0, right, 0, below))
    x = x.unflatten(3, (-1, dilation)).unflatten(2, (-1, dilation))
    return x.permute(0, 1, 3, 5, 2, 4, 6).flatten(4, 5).flatten(2, 3).flatten(0, 1)


def merge_phases(x: Tensor, feat_size: tuple[int, int], dilation: int, num_heads: int) -> Tensor:
    """The inverse of `split_phases`: `[B * H, dilation^2, L, D]` to `[B, H, N, D]`."""
    rows = -(-feat_size[0] // dilation)
    x = x.unflatten(2, (rows, -1)).unflatten(1, (dilation, dilation)).unflatten(0, (-1, num_heads))
    x = x.permute(0, 1, 4, 2, 5, 3, 6).flatten(4, 5).flatten(2, 3)
    return x[:, :, : feat_size[0], : feat_size[1]].flatten(2, 3)


def phase_mask(feat_size: tuple[int, int], dilation: int, device: torch.device) -> Tensor | None:
    """Which keys of each phase are tokens of the map, bool `[1, dilation^2, 1, L]`; None if all are."""
    if all(length % dilation == 0 for length in feat_size):
        return None
    on_map = torch.ones(1, 1, feat_size[0] * feat_size[1], 1, dtype=torch.bool, device=device)
    mask = split_phases(on_map, feat_size, dilation).mT
    # A phase that lies beyond a small map altogether is cut off later; until then it must not be 0 / 0.
    return mask | ~mask.any(-1, keepdim=True)


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feat_size: tuple[int, int],
    kernel_size: int,
    dropout_p: float = 0.0,
    fused: bool = True,
) -> Tensor:
    """Scaled dot-product attention of each token to the kernel_size x kernel_size tokens around it, cut at the edges.

    q, k, v: `[B, H, N, D]` with `N = feat_size[0] * feat_size[1]`; the result has v's shape. kernel_size is odd. Works
    on tiles of the map with their neighbours, at most `(8 + kernel_size - 1)^2` keys for each query. fused: see
    `dot_product_attention`.
    """
    reach = kernel_size // 2
    x = dot_product_attention(
        split_tiles(q, feat_size, reach, with_neighbours=False),
        split_tiles(k, feat_size, reach, with_neighbours=True),
        split_tiles(v, feat_size, reach, with_neighbours=True),
        tile_mask(feat_size, reach, q.device),
        dropout_p,
        fused,
    )
    return merge_tiles(x, feat_size, reach, q.shape[1])


def atrous_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feat_size: tuple[int, int],
    dilation: int,
    dropout_p: float = 0.0,
    fused: bool = True,
) -> Tensor:
    """Scaled dot-product attention of each token to those at multiples of dilation from it, in y and in x.

    q, k, v: `[B, H, N, D]` with `N = feat_size[0] * feat_size[1]`; the result has v's shape. Tokens of one phase
    (y mod dilation, x mod dilation) see only each other, so there are `N^2 / dilation^2` products. fused: see
    `dot_product_attention`.
    """
    x = dot_product_attention(
        split_phases(q, feat_size, dilation),
        split_phases(k, feat_size, dilation),
        split_phases(v, feat_size, dilation),
        phase_mask(feat_size, dilation, q.device),
        dropout_p,
        fused,
    )
    return merge_phases(x, feat_size, dilation, q.shape[1])


def sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feat_size: tuple[int, int],
    kernel_size: int,
    dilation: int,
    dropout_p: float = 0.0,
) -> Tensor:
    """Scaled dot-product attention of each token to the union of its `local_attention` and `atrous_attention` keys.

    q, k, v: `[B, H, N, D]` with `N = feat_size[0] * feat_size[1]`; the result has v's shape and dtype. One softmax over
    the union: a token in both patterns counts once.
    """
    reach, num_heads = kernel_size // 2, q.shape[1]
    q = q * q.shape[-1] ** -0.5
    local_scores = at_least_float32(
        split_tiles(q, feat_size, reach, with_neighbours=False)
        @ split_tiles(k, feat_size, reach, with_neighbours=True).mT
    )
    mask = tile_mask(feat_size, reach, q.device, without_phase=dilation)
    local_scores = local_scores.masked_fill(~mask, float("-inf"))
    atrous_scores = at_least_float32(split_phases(q, feat_size, dilation) @ split_phases(k, feat_size, dilation).mT)
    on_map = phase_mask(feat_size, dilation, q.device)
    if on_map is not None:
        atrous_scores = atrous_scores.masked_fill(~on_map, float("-inf"))

    # Both parts are taken relative to one maximum, which is finite because each token is in its own phase.
    largest = torch.maximum(
        merge_tiles(local_scores.detach().amax(-1, keepdim=True), feat_size, reach, num_heads),
        merge_phases(atrous_scores.detach().amax(-1, keepdim=True), feat_size, dilation, num_heads),
    )
    largest = largest - math.log(LARGEST_WEIGHT)
    local = (local_scores - split_tiles(largest, feat_size, reach, with_neighbours=False)).exp()
    atrous = (atrous_scores - split_phases(largest, feat_size, dilation)).exp()
    total = merge_tiles(local.sum(-1, keepdim=True), feat_size, reach, num_heads)
    total = total + merge_phases(atrous.sum(-1, keepdim=True), feat_size, dilation, num_heads)
    if dropout_p > 0:
        local, atrous = F.dropout(local, dropout_p), F.dropout(atrous, dropout_p)
    local = local.to(v.dtype) @ split_tiles(v, feat_size, reach, with_neighbours=True)
    atrous = atrous.to(v.dtype) @ split_phases(v, feat_size, dilation)
    x = at_least_float32(merge_tiles(local, feat_size, reach, num_heads))
    x = x + at_least_float32(merge_phases(atrous, feat_size, dilation, num_heads))
    return (x / total).to(v.dtype)
