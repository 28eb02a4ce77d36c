"""Softmax attention of each token of a map to a dilated grid, or to that and its neighbourhood.

Letters: B batch, H heads, N = Y * X tokens of a map of Y rows and X columns, row by row, D channels of a head; G groups
of L queries and S keys each.
"""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.chunked import by_heads
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least_float32
from soft_vit.ops.softmax import attention_in_groups, attention_with_prefix, dot_product_attention
from soft_vit.ops.windows import merge_tiles, split_tiles, tile_mask

# The largest weight before the division by their sum, which follows the product with values: fp16 can hold sums of
# many such weights, and small weights.
MAX_WEIGHT = 1 / 64


def phase_steps(feat_size: tuple[int, int], dilation: int) -> tuple[int, int]:
    """Return the dilation in y and in x: 1 for a side of one token."""
    return 1 if feat_size[0] == 1 else dilation, 1 if feat_size[1] == 1 else dilation


def split_phases(x: Tensor, feat_size: tuple[int, int], dilation: int) -> Tensor:
    """Split `[B, H, N, D]` into groups of equal phase (y mod dilation, x mod dilation): `[B * H, G, L, D]`."""
    dy, dx = phase_steps(feat_size, dilation)
    x = F.pad(x.unflatten(2, feat_size), (0, 0, 0, -feat_size[1] % dx, 0, -feat_size[0] % dy))
    x = x.unflatten(3, (-1, dx)).unflatten(2, (-1, dy))
    # `clone`: see `split_tiles`.
    x = x.permute(0, 1, 3, 5, 2, 4, 6).clone(memory_format=torch.contiguous_format)
    return x.flatten(4, 5).flatten(2, 3).flatten(0, 1)


def merge_phases(x: Tensor, feat_size: tuple[int, int], dilation: int, num_heads: int) -> Tensor:
    """Merge phases `[B * H, G, L, D]` to `[B, H, N, D]`: the inverse of `split_phases`."""
    dy, dx = phase_steps(feat_size, dilation)
    rows = -(-feat_size[0] // dy)
    x = x.unflatten(2, (rows, -1)).unflatten(1, (dy, dx)).unflatten(0, (-1, num_heads))
    x = x.permute(0, 1, 4, 2, 5, 3, 6).flatten(4, 5).flatten(2, 3)
    return x[:, :, : feat_size[0], : feat_size[1]].flatten(2, 3)


def phase_mask(feat_size: tuple[int, int], dilation: int, device: torch.device) -> Tensor | None:
    """Return which keys of each phase are on the map, bool `[1, G, 1, L]`; None if all are."""
    if all(length % step == 0 for length, step in zip(feat_size, phase_steps(feat_size, dilation), strict=True)):
        return None
    on_map = torch.ones(1, 1, feat_size[0] * feat_size[1], 1, dtype=torch.bool, device=device)
    mask = split_phases(on_map, feat_size, dilation).mT
    # On a small map, a phase may be empty. It is dropped later; until then it must not be 0 / 0.
    return mask | ~mask.any(-1, keepdim=True)


def atrous_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, dilation: int, dropout_p: float = 0.0, fused: bool = True
) -> Tensor:
    """Return attention of each token to those at multiples of dilation from it, in y and in x.

    q, k, v: `[B, H, P + N, D]`; the result has v's shape. Prefix tokens see all tokens, and all tokens see them. Tokens
    of one phase (y mod dilation, x mod dilation) see only each other, so there are `N^2 / dilation^2` products. fused:
    see `dot_product_attention`.
    """
    split = partial(split_phases, feat_size=layout.grid_size, dilation=dilation)
    merge = partial(merge_phases, feat_size=layout.grid_size, dilation=dilation)
    mask = phase_mask(layout.grid_size, dilation, q.device)

    @by_heads
    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return attention_in_groups(split, split, merge, mask, q, k, v, **options)

    return attention_with_prefix(attend, q, k, v, layout, dropout_p, fused)


def sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    kernel_size: int,
    dilation: int,
    dropout_p: float = 0.0,
    fused: bool = True,
) -> Tensor:
    """Return attention of each token to the union of its `local_attention` and `atrous_attention` keys.

    q, k, v: `[B, H, P + N, D]`; the result has v's shape and dtype. One softmax is over the union: a token in both
    patterns counts once. Prefix tokens see all tokens, and all tokens see them. fused: see `dot_product_attention`;
    for the queries of prefix tokens alone.
    """
    feat_size, P, reach, num_heads = layout.grid_size, layout.num_prefix_tokens, kernel_size // 2, q.shape[1]
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

    # One maximum for all parts. It is finite for every valid token, because its own phase contains it.
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
    largest = largest - math.log(MAX_WEIGHT)
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
        first = dot_product_attention(all_q[:, :, :P], all_k, all_v, layout.key_mask, dropout_p, fused)
        x = torch.cat([first, x], dim=2)
    return x
