"""Softmax attention restricted to a pattern on the token map: a neighbourhood, a dilated grid, or both.

Letters: B batch, H heads, N = Y * X tokens of a map of Y rows and X columns, row by row, D channels of a head; G groups
of L queries and S keys each.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.by_heads import by_heads
from soft_vit.ops.layout import Layout
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


def phase_steps(feat_size: tuple[int, int], dilation: int) -> tuple[int, int]:
    """The dilation in y and in x; a side of one token has one phase."""
    return 1 if feat_size[0] == 1 else dilation, 1 if feat_size[1] == 1 else dilation


def split_phases(x: Tensor, feat_size: tuple[int, int], dilation: int) -> Tensor:
    """`[B, H, N, D]` to the groups of equal phase (y mod dilation, x mod dilation): `[B * H, G, L, D]`."""
    dy, dx = phase_steps(feat_size, dilation)
    x = F.pad(x.unflatten(2, feat_size), (0, 0, 0, -feat_size[1] % dx, 0, -feat_size[0] % dy))
    x = x.unflatten(3, (-1, dx)).unflatten(2, (-1, dy))
    return x.permute(0, 1, 3, 5, 2, 4, 6).flatten(4, 5).flatten(2, 3).flatten(0, 1)


def merge_phases(x: Tensor, feat_size: tuple[int, int], dilation: int, num_heads: int) -> Tensor:
    """The inverse of `split_phases`: `[B * H, G, L, D]` to `[B, H, N, D]`."""
    dy, dx = phase_steps(feat_size, dilation)
    rows = -(-feat_size[0] // dy)
    x = x.unflatten(2, (rows, -1)).unflatten(1, (dy, dx)).unflatten(0, (-1, num_heads))
    x = x.permute(0, 1, 4, 2, 5, 3, 6).flatten(4, 5).flatten(2, 3)
    return x[:, :, : feat_size[0], : feat_size[1]].flatten(2, 3)


def phase_mask(feat_size: tuple[int, int], dilation: int, device: torch.device) -> Tensor | None:
    """Which keys of each phase are tokens of the map, bool `[1, G, 1, L]`; None if all are."""
    if all(length % step == 0 for length, step in zip(feat_size, phase_steps(feat_size, dilation), strict=True)):
        return None
    on_map = torch.ones(1, 1, feat_size[0] * feat_size[1], 1, dtype=torch.bool, device=device)
    mask = split_phases(on_map, feat_size, dilation).mT
    # A phase that lies beyond a small map altogether is cut off later; until then it must not be 0 / 0.
    return mask | ~mask.any(-1, keepdim=True)


@by_heads
def pattern_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    split_queries: Callable[[Tensor], Tensor],
    split_keys: Callable[[Tensor], Tensor],
    pattern: Tensor | None,
    merge: Callable[..., Tensor],
    dropout_p: float,
    fused: bool,
) -> Tensor:
    """Softmax attention of the tokens of a map to groups of them and to all prefix tokens, and of those to all tokens.

    q, k, v and the result: `[B, H, P + N, D]`. split_queries, split_keys: `[B, H, N, D]` to groups `[B * H, G, L, D]`
    and `[B * H, G, S, D]`; merge: the inverse of the first, for num_heads. pattern: bool
    `[1, G, L or 1, S]`, None if all count.
    """
    P, num_heads = layout.num_prefix_tokens, q.shape[1]
    queries, keys, values = split_queries(layout.grid(q)), split_keys(layout.grid(k)), split_keys(layout.grid(v))
    mask = pattern
    if P:
        extra = (x[:, :, :P].flatten(0, 1)[:, None].expand(-1, keys.shape[1], -1, -1) for x in (k, v))
        keys, values = (torch.cat(pair, dim=2) for pair in zip(extra, (keys, values), strict=True))
        mask = None if mask is None else F.pad(mask, (P, 0), value=True)
    if layout.mask is not None:
        counts = split_keys(layout.mask[:, P:][:, None, :, None]).mT
        counts = torch.cat([layout.mask[:, None, None, :P].expand(-1, counts.shape[1], -1, -1), counts], dim=-1)
        counts = counts.repeat_interleave(num_heads, dim=0)
        mask = counts if mask is None else mask & counts
        # What a token that does not count gets is cut off later; until then it must not be 0 / 0.
        mask = mask | ~mask.any(-1, keepdim=True)
    x = merge(dot_product_attention(queries, keys, values, mask, dropout_p, fused), num_heads=num_heads)
    if P:
        prefix = dot_product_attention(q[:, :, :P], k, v, layout.key_mask, dropout_p, fused)
        x = torch.cat([prefix, x], dim=2)
    return x


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    kernel_size: int,
    dropout_p: float = 0.0,
    fused: bool = True,
) -> Tensor:
    """Scaled dot-product attention of each token to the kernel_size x kernel_size tokens around it, cut at the edges.

    q, k, v: `[B, H, P + N, D]`; the result has v's shape. kernel_size is odd. Prefix tokens see all tokens, and all see
    them. Works on tiles of the map with their neighbours, at most `(8 + kernel_size - 1)^2` keys for each query. fused:
    see `dot_product_attention`.
    """
    feat_size, reach = layout.feat_size, kernel_size // 2
    return pattern_attention(
        q,
        k,
        v,
        layout,
        lambda x: split_tiles(x, feat_size, reach, with_neighbours=False),
        lambda x: split_tiles(x, feat_size, reach, with_neighbours=True),
        pattern=tile_mask(feat_size, reach, q.device),
        merge=partial(merge_tiles, feat_size=feat_size, reach=reach),
        dropout_p=dropout_p,
        fused=fused,
    )


def atrous_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    dilation: int,
    dropout_p: float = 0.0,
    fused: bool = True,
) -> Tensor:
    """Scaled dot-product attention of each token to those at multiples of dilation from it, in y and in x.

    q, k, v: `[B, H, P + N, D]`; the result has v's shape. Prefix tokens see all tokens, and all see them. Tokens of one
    phase (y mod dilation, x mod dilation) see only each other, so there are `N^2 / dilation^2` products. fused: see
    `dot_product_attention`.
    """
    feat_size = layout.feat_size
    return pattern_attention(
        q,
        k,
        v,
        layout,
        lambda x: split_phases(x, feat_size, dilation),
        lambda x: split_phases(x, feat_size, dilation),
        pattern=phase_mask(feat_size, dilation, q.device),
        merge=partial(merge_phases, feat_size=feat_size, dilation=dilation),
        dropout_p=dropout_p,
        fused=fused,
    )


def sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    kernel_size: int,
    dilation: int,
    dropout_p: float = 0.0,
) -> Tensor:
    """Scaled dot-product attention of each token to the union of its `local_attention` and `atrous_attention` keys.

    q, k, v: `[B, H, P + N, D]`; the result has v's shape and dtype. One softmax over the union: a token in both
    patterns counts once. Prefix tokens see all tokens, and all see them.
    """
    feat_size, P, reach, num_heads = layout.feat_size, layout.num_prefix_tokens, kernel_size // 2, q.shape[1]
    all_q, all_k, all_v = q, k, v
    q, k, v = layout.grid(q) * q.shape[-1] ** -0.5, layout.grid(k), layout.grid(v)
    local_scores = at_least_float32(
        split_tiles(q, feat_size, reach, with_neighbours=False)
        @ split_tiles(k, feat_size, reach, with_neighbours=True).mT
    )
    see_local = tile_mask(feat_size, reach, q.device, without_phase=dilation)
    atrous_scores = at_least_float32(split_phases(q, feat_size, dilation) @ split_phases(k, feat_size, dilation).mT)
    see_atrous = phase_mask(feat_size, dilation, q.device)
    if layout.grid_mask is not None:
        counts = layout.grid_mask[:, None, :, None].expand(-1, num_heads, -1, -1)
        see_local = see_local & split_tiles(counts, feat_size, reach, with_neighbours=True).mT
        phases = split_phases(counts, feat_size, dilation).mT
        see_atrous = phases if see_atrous is None else see_atrous & phases
    local_scores = local_scores.masked_fill(~see_local, float("-inf"))
    if see_atrous is not None:
        atrous_scores = atrous_scores.masked_fill(~see_atrous, float("-inf"))

    # All parts are taken relative to one maximum, which is finite because each token that counts is in its own phase.
    largest = torch.maximum(
        merge_tiles(local_scores.detach().amax(-1, keepdim=True), feat_size, reach, num_heads),
        merge_phases(atrous_scores.detach().amax(-1, keepdim=True), feat_size, dilation, num_heads),
    )
    if P:
        prefix_scores = at_least_float32(q @ all_k[:, :, :P].mT)
        if layout.key_mask is not None:
            prefix_scores = prefix_scores.masked_fill(~layout.key_mask[..., :P], float("-inf"))
        largest = torch.maximum(largest, prefix_scores.detach().amax(-1, keepdim=True))
    if layout.mask is not None:
        largest = largest.clamp(min=torch.finfo(largest.dtype).min)
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
    if P:
        prefix = (prefix_scores - largest).exp()
        total = total + prefix.sum(-1, keepdim=True)
        x = x + (F.dropout(prefix, dropout_p) if dropout_p > 0 else prefix) @ at_least_float32(all_v[:, :, :P])
    if layout.mask is not None:
        total = total.clamp(min=torch.finfo(total.dtype).tiny)
    x = (x / total).to(v.dtype)
    if P:
        first = dot_product_attention(all_q[:, :, :P], all_k, all_v, layout.key_mask, dropout_p)
        x = torch.cat([first, x], dim=2)
    return x
