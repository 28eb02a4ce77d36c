"""Landmarks: a few tokens that stand for all of a map."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.layers.shortcuts import smaller

Landmarks = Literal["grid", "segment"]


def window_averages(maps: Tensor, grid: tuple[int, int]) -> Tensor:
    """Averages `[P, D, h, w]` of maps `[P, D, H, W]` over a grid of h x w windows, which may overlap by a token."""
    size = maps.shape[-2:]
    if not any(isinstance(side, torch.SymInt) for side in (*size, *grid)):
        return F.adaptive_avg_pool2d(maps, grid)
    # Translated to ONNX, that would keep the windows of the size that the graph was captured with.
    weights = window_weights(size, grid, maps).expand(maps.shape[0], -1, -1)
    return torch.bmm(maps.flatten(2), weights.mT).unflatten(2, grid)


def window_weights(size: Sequence[int], grid: Sequence[int], like: Tensor) -> Tensor:
    """The matrix `[h * w, H * W]` by which `adaptive_avg_pool2d` averages a map (H, W) to a grid (h, w)."""
    window, token = (torch.arange(h * w, device=like.device) for h, w in (grid, size))
    window_row, token_row = window // grid[1], token // size[1]
    # No remainders: ONNX has none by a size that is open.
    columns = size[1], grid[1], window - window_row * grid[1], token - token_row * size[1]
    weights = torch.ones((), device=like.device, dtype=like.dtype)
    for length, count, i, position in ((size[0], grid[0], window_row, token_row), columns):
        start, end = i * length // count, ((i + 1) * length + count - 1) // count
        inside = (position >= start[:, None]) & (position < end[:, None])
        weights = weights * inside / (end - start)[:, None]
    return weights.to(like.dtype)


def landmark_tokens(
    x: Tensor, feat_size: tuple[int, int], sr_ratio: int, limit: tuple[int, int] | None, landmarks: Landmarks = "grid"
) -> Tensor:
    """Averages `[B, H, M, D]` of tokens `[B, H, N, D]`: over a grid of windows of the map, or over runs of tokens.

    There are as many as whole windows of side sr_ratio, at least one and at most `limit` on each side of the map.
    Where they do not divide the tokens, neighbouring windows overlap by a token.
    """
    grid = (max(1, feat_size[0] // sr_ratio), max(1, feat_size[1] // sr_ratio))
    if limit is not None:
        grid = (smaller(grid[0], limit[0]), smaller(grid[1], limit[1]))
    maps = x.flatten(0, 1).mT
    if landmarks == "segment":
        tokens = window_averages(maps[:, :, None], (1, grid[0] * grid[1])).flatten(2)
    else:
        tokens = window_averages(maps.unflatten(2, feat_size), grid).flatten(2)
    return tokens.mT.unflatten(0, x.shape[:2])
