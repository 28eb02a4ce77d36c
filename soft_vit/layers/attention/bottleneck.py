"""Bottleneck tokens of softmax-free attention, sampled from the query map.

Letters: B batch, H heads, D channels of a head, Y x X a map, M bottleneck tokens.
"""

import math

import torch
from torch import Tensor, nn

from soft_vit.layers.attention.base import pad_to_window
from soft_vit.ops.landmarks import reduced_grid, run_averages, window_averages
from soft_vit.ops.layout import FeatSize, Layout, Size
from soft_vit.ops.numerics import at_least
from soft_vit.ops.sizes import same_size


def bottleneck_grid(num_bottleneck: int, feat_size: FeatSize) -> Size:
    """Return the grid of num_bottleneck tokens, square on a map, a column along a sequence; ValueError if too many."""
    at_least("num_bottleneck", num_bottleneck)
    if len(feat_size) == 1:
        if num_bottleneck > feat_size[0]:
            raise ValueError(f"num_bottleneck must be from 1 to {feat_size[0]}, got num_bottleneck={num_bottleneck}.")
        return num_bottleneck, 1
    side = math.isqrt(num_bottleneck)
    if side * side != num_bottleneck or side > min(feat_size):
        what = f"a square number from 1 to {min(feat_size) ** 2} on a map of {feat_size[0]} x {feat_size[1]} tokens"
        raise ValueError(f"num_bottleneck must be {what}, got num_bottleneck={num_bottleneck}.")
    return side, side


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
        return run_averages(tokens, whole, 1, limit)
    if not same_size(tokens.shape[-2:], grid):
        tokens = window_averages(tokens, grid)
    return tokens.flatten(2).mT, None
