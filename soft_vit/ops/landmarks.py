"""Landmarks: a few tokens that stand for all of a map.

Letters: B batch, H heads, N tokens of a map (Y, X), D channels of a head, M landmarks.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.layout import Layout, Size
from soft_vit.ops.numerics import at_least_float32
from soft_vit.ops.sizes import smaller

Landmarks = Literal["grid", "segment"]
Limit = int | tuple[int, ...] | None
"""The largest grid of landmarks, given as one side or both; None for one that grows with the map."""

NO_MASK_ON_A_MAP = "its landmarks stand for windows of a full map; use a sequence, feat_size=(N,)"
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


def grid_limit(name: str, value: Limit, sequence: bool = False) -> Size | None:
    """Return the largest grid (height, width) of tokens, given as one side or both; on a result, return it again.

    Along a sequence the same number of tokens forms one column; value may then be (M,). ValueError unless all numbers
    are positive.
    """
    if value is None:
        return None
    limit = tuple(value) if isinstance(value, Sequence) else (value, value)
    lengths = (1, 2) if sequence else (2,)
    if not all(isinstance(side, int) and side > 0 for side in limit) or len(limit) not in lengths:
        raise ValueError(f"{name} must be one or two positive numbers, or None, got {name}={value}.")
    return (math.prod(limit), 1) if sequence else (limit[0], limit[1])


def reduced_grid(maps: Tensor, window: Size, limit: Size | None) -> Size:
    """Return the grid of whole windows on maps `[..., Y, X]`, from one up to `limit`; a remainder is dropped."""
    height, width = (max(1, side // size) for side, size in zip(maps.shape[-2:], window, strict=True))
    return (height, width) if limit is None else (smaller(height, limit[0]), smaller(width, limit[1]))


def window_averages(maps: Tensor, grid: Size) -> Tensor:
    """Return averages `[P, D, h, w]` of maps `[P, D, H, W]` over h x w windows, which may overlap by a token."""
    size = maps.shape[-2:]
    if not any(isinstance(side, torch.SymInt) for side in (*size, *grid)):
        return F.adaptive_avg_pool2d(maps, grid)
    # Translated to ONNX, that would keep the windows of the size that the graph was captured with.
    weights = window_weights(size, grid, maps).expand(maps.shape[0], -1, -1)
    return torch.bmm(maps.flatten(2), weights.mT).unflatten(2, grid)


def window_weights(size: Sequence[int], grid: Sequence[int], like: Tensor) -> Tensor:
    """Return the matrix `[h * w, H * W]` by which `adaptive_avg_pool2d` averages a map (H, W) to a grid (h, w)."""
    window, token = (torch.arange(h * w, device=like.device) for h, w in (grid, size))
    window_row, token_row = window // grid[1], token // size[1]
    # No remainders: ONNX has none by a size that is open.
    window_column, token_column = window - window_row * grid[1], token - token_row * size[1]
    rows = cell_weights(token_row, window_row, grid[0], size[0], like.dtype)
    return rows * cell_weights(token_column, window_column, grid[1], size[1], like.dtype)


def cell_weights(place: Tensor, cell: Tensor, cells: int | Tensor, places: int | Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weights `[..., M, N]` by which `adaptive_avg_pool1d` averages places `[..., N]` in cells `[..., M]`.

    cells, places: their numbers. Cells without a place have weights of zero.
    """
    # Rounded up by a larger numerator: ONNX rounds division to zero.
    start, end = cell * places // cells, ((cell + 1) * places + cells - 1) // cells
    inside = (place[..., None, :] >= start[..., None]) & (place[..., None, :] < end[..., None])
    return inside.to(dtype) / (end - start).clamp(min=1)[..., None]


def run_averages(maps: Tensor, mask: Tensor, length: int, limit: Size | None) -> tuple[Tensor, Tensor]:
    """Return averages over runs of the valid tokens of sequences `[B * H, D, N, 1]`: `[B * H, M, D]`.

    mask: bool `[B, N]`. An image has as many averages as runs of `length` valid tokens, at least one and at most
    limit; they are those that `adaptive_avg_pool1d` gives for these tokens alone. The others are zero, and False in the
    second result, bool `[B, M]`.
    """
    x = maps.flatten(2).mT.unflatten(0, (mask.shape[0], len(maps) // max(1, mask.shape[0])))
    run = torch.arange(reduced_grid(maps, (length, 1), limit)[0], device=x.device)
    tokens = mask.sum(1, keepdim=True)
    count = (tokens // length).clamp(min=1, max=run.shape[0])
    exists = run < count
    weights = cell_weights(mask.cumsum(1) - 1, run, count, tokens, x.dtype)
    weights = weights.masked_fill(~(mask[:, None] & exists[..., None]), 0)
    return (weights[:, None] @ x.masked_fill(~mask[:, None, :, None], 0)).flatten(0, 1), exists


def isolate_missing(landmarks: Tensor, exists: Tensor) -> Tensor:
    """Move landmarks `[B, H, M, D]` that do not exist so far from all others that a Gaussian kernel is zero.

    exists: bool `[B, M]`. The result is at least fp32. The kernel of the landmarks then has an identity instead of
    these, which no inverse mixes with the rest.
    """
    landmarks = at_least_float32(landmarks)
    far = torch.zeros_like(landmarks[:1, :1])
    far[..., 0] = 1e3 * torch.arange(1, far.shape[2] + 1, device=far.device)
    return torch.where(exists[:, None, :, None], landmarks, far)


def average_tokens(maps: Tensor, window: Size, limit: Size | None, layout: Layout) -> tuple[Tensor, Tensor | None]:
    """Average maps `[B * H, D, Y, X]` over a grid of windows: tokens `[B * H, M, D]`.

    There are as many as whole windows, at least one and at most `limit` on each side of the map. Where they do not
    divide the tokens, neighbouring windows overlap by a token. Second, bool `[B, M]`: which of them exist, where some
    tokens of a sequence are padding; they are zeros behind the others. Otherwise None.
    """
    if layout.grid_mask is not None:
        return run_averages(maps, layout.grid_mask, window[0], limit)
    return window_averages(maps, reduced_grid(maps, window, limit)).flatten(2).mT, None


def landmark_tokens(
    x: Tensor, layout: Layout, sr_ratio: int, limit: Size | None, landmarks: Landmarks = "grid"
) -> tuple[Tensor, Tensor | None]:
    """Average tokens `[B, H, P + N, D]` to `[B, H, M, D]`: over a grid of windows of the map, or over runs of tokens.

    Prefix tokens are left out. As many, and a second result, as of `average_tokens` with windows of side sr_ratio.
    """
    # A sequence has one column.
    size = sr_ratio, sr_ratio
    maps = layout.grid(x).flatten(0, 1).mT.unflatten(2, layout.grid_size)
    if landmarks == "segment" and layout.mask is None:
        run = 1, math.prod(reduced_grid(maps, size, limit))
        tokens, exist = window_averages(maps.flatten(2)[:, :, None], run).flatten(2).mT, None
    else:
        tokens, exist = average_tokens(maps, size, limit, layout)
    return tokens.unflatten(0, x.shape[:2]), exist


def first_tokens(maps: Tensor, window: Size, limit: Size | None) -> Tensor:
    """Return the first tokens of maps `[B * H, D, Y, X]` in raster order: `[B * H, M, D]`."""
    return maps.flatten(2)[..., : math.prod(reduced_grid(maps, window, limit))].mT


def random_tokens(maps: Tensor, window: Size, limit: Size | None, redraw: bool) -> Tensor:
    """Return one token from each of M equal runs of maps `[B * H, D, Y, X]`: distinct tokens `[B * H, M, D]`.

    redraw: draw the positions within the runs; otherwise a fixed low-discrepancy sequence chooses them.
    """
    height, width = reduced_grid(maps, window, limit)
    count, num_tokens = height * width, maps.shape[-2] * maps.shape[-1]
    run = torch.arange(count, device=maps.device, dtype=torch.float32)
    place = torch.rand(count, device=maps.device) if redraw else (run * GOLDEN_RATIO) % 1
    index = ((run + place) * (num_tokens / count)).long().clamp(max=num_tokens - 1)
    return maps.flatten(2)[..., index].mT
