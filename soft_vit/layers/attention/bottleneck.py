"""Bottleneck tokens of softmax-free attention, sampled from the query map.

Letters: B batch, H heads, D channels of a head, Y x X a map, M bottleneck tokens.
"""

import math

import torch
from torch import Tensor, nn

from soft_vit.layers.attention.base import at_least, pad_to_window
from soft_vit.layers.attention.landmarks import run_averages, window_averages
from soft_vit.layers.sizes import same_size, smaller
from soft_vit.ops.layout import FeatSize, Layout

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
Size = tuple[int, int]


def bottleneck_grid(num_bottleneck: int, feat_size: FeatSize) -> Size:
    """Return the grid of num_bottleneck tokens, square on a map, a column along a sequence; ValueError if too many."""
    at_least("num_bottleneck", num_bottleneck)
    if len(feat_size) == 1:
        if num_bottleneck > feat_size[0]:
            raise ValueError(f"num_bottleneck must be from 1 to {feat_size[0]}, got num_bottleneck={num_bottleneck}.")
        return num_bottleneck, 1
    side = math.isqrt(num_bottleneck)
    if side * side != num_bottleneck or side > min(feat_size):
        raise ValueError(
            f"num_bottleneck must be a square number from 1 to {min(feat_size) ** 2} on a map of {feat_size[0]} x "
            f"{feat_size[1]} tokens, got num_bottleneck={num_bottleneck}."
        )
    return side, side


def reduced_grid(maps: Tensor, window: Size, limit: Size | None) -> Size:
    """Return the grid of whole windows on maps `[..., Y, X]`, from one up to `limit`; a remainder is dropped."""
    height, width = (max(1, side // size) for side, size in zip(maps.shape[-2:], window, strict=True))
    return (height, width) if limit is None else (smaller(height, limit[0]), smaller(width, limit[1]))


def conv_tokens(
    maps: Tensor, conv: nn.Module, window: Size, limit: Size | None, layout: Layout
) -> tuple[Tensor, Tensor | None]:
    """Convolve query maps `[B * H, D, Y, X]` with kernel = stride, pooled to at most `limit`: tokens `[B * H, M, D]`.

    The second result, bool `[B, M]`, tells which of them exist, where some tokens of a sequence are padding, and are
    zeros behind the others; otherwise None.
    """
    grid = reduced_grid(maps, window, limit)
    tokens = conv(pad_to_window(maps, window))
    if layout.grid_mask is not None:
        end = window[0] * torch.arange(1, tokens.shape[2] + 1, device=tokens.device)
        whole = end <= layout.grid_mask.sum(1, keepdim=True).clamp(min=window[0])
        return masked_averages(tokens, whole, 1, limit)
    if not same_size(tokens.shape[-2:], grid):
        tokens = window_averages(tokens, grid)
    return tokens.flatten(2).mT, None


def average_tokens(maps: Tensor, window: Size, limit: Size | None, layout: Layout) -> tuple[Tensor, Tensor | None]:
    """Average query maps `[B * H, D, Y, X]` over equal windows: tokens `[B * H, M, D]`; second as in `conv_tokens`."""
    grid = reduced_grid(maps, window, limit)
    if layout.grid_mask is not None:
        return masked_averages(maps, layout.grid_mask, window[0], limit)
    return window_averages(maps, grid).flatten(2).mT, None


def masked_averages(maps: Tensor, mask: Tensor, length: int, limit: Size | None) -> tuple[Tensor, Tensor]:
    """Return `run_averages` of sequences as maps `[B * H, D, N, 1]` whose mask is `[B, N]`: `[B * H, M, D]`."""
    tokens = maps.flatten(2).mT.unflatten(0, (mask.shape[0], len(maps) // max(1, mask.shape[0])))
    tokens, exist = run_averages(tokens, mask, length, None if limit is None else limit[0])
    return tokens.flatten(0, 1), exist


def first_tokens(maps: Tensor, window: Size, limit: Size | None) -> Tensor:
    """Return the first tokens of query maps `[B * H, D, Y, X]` in raster order: `[B * H, M, D]`."""
    return maps.flatten(2)[..., : math.prod(reduced_grid(maps, window, limit))].mT


def random_tokens(maps: Tensor, window: Size, limit: Size | None, redraw: bool) -> Tensor:
    """Return one token from each of M equal runs of query maps `[B * H, D, Y, X]`: distinct tokens `[B * H, M, D]`.

    redraw: draw the positions within the runs; otherwise a fixed low-discrepancy sequence chooses them.
    """
    height, width = reduced_grid(maps, window, limit)
    count, num_tokens = height * width, maps.shape[-2] * maps.shape[-1]
    run = torch.arange(count, device=maps.device, dtype=torch.float32)
    place = torch.rand(count, device=maps.device) if redraw else (run * GOLDEN_RATIO) % 1
    index = ((run + place) * (num_tokens / count)).long().clamp(max=num_tokens - 1)
    return maps.flatten(2)[..., index].mT
