"""Landmarks: a few tokens that stand for all of a map."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.layers.sizes import smaller
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least_float32

Landmarks = Literal["grid", "segment"]

NO_MASK_ON_A_MAP = "its landmarks stand for windows of a full map; use a sequence, feat_size=(N,)"


def window_averages(maps: Tensor, grid: tuple[int, int]) -> Tensor:
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
    columns = size[1], grid[1], window - window_row * grid[1], token - token_row * size[1]
    weights = torch.ones((), device=like.device, dtype=like.dtype)
    for length, count, i, position in ((size[0], grid[0], window_row, token_row), columns):
        start, end = i * length // count, ((i + 1) * length + count - 1) // count
        inside = (position >= start[:, None]) & (position < end[:, None])
        weights = weights * inside / (end - start)[:, None]
    return weights.to(like.dtype)


def run_averages(x: Tensor, mask: Tensor, length: int, limit: int | None) -> tuple[Tensor, Tensor]:
    """Return averages `[B, H, M, D]` over runs of the valid tokens of `[B, H, N, D]`, and which of them exist.

    mask: bool `[B, N]`. An image has as many averages as runs of `length` valid tokens, at least one and at most
    limit; they are those that `adaptive_avg_pool1d` gives for these tokens alone. The others are zero, and False in the
    second result, `[B, M]`.
    """
    size = max(1, x.shape[2] // length)
    run = torch.arange(size if limit is None else min(size, limit), device=x.device)
    tokens = mask.sum(1, keepdim=True)
    count = (tokens // length).clamp(min=1, max=run.shape[0])
    start, end = run * tokens // count, ((run + 1) * tokens + count - 1) // count
    place, exists = (mask.cumsum(1) - 1)[:, None], run < count
    inside = (place >= start[..., None]) & (place < end[..., None]) & mask[:, None] & exists[..., None]
    # Where no token is valid, the one average is zero.
    weights = inside.to(x.dtype) / (end - start).clamp(min=1)[..., None]
    return weights[:, None] @ x.masked_fill(~mask[:, None, :, None], 0), exists


def isolate_missing(landmarks: Tensor, exists: Tensor) -> Tensor:
    """Move landmarks `[B, H, M, D]` that do not exist so far from all others that a Gaussian kernel is zero.

    exists: bool `[B, M]`. The result is at least fp32. The kernel of the landmarks then has an identity instead of
    these, which no inverse mixes with the rest.
    """
    landmarks = at_least_float32(landmarks)
    far = torch.zeros_like(landmarks[:1, :1])
    far[..., 0] = 1e3 * torch.arange(1, far.shape[2] + 1, device=far.device)
    return torch.where(exists[:, None, :, None], landmarks, far)


def landmark_tokens(
    x: Tensor, layout: Layout, sr_ratio: int, limit: tuple[int, int] | None, landmarks: Landmarks = "grid"
) -> tuple[Tensor, Tensor | None]:
    """Average tokens `[B, H, P + N, D]` to `[B, H, M, D]`: over a grid of windows of the map, or over runs of tokens.

    There are as many as whole windows of side sr_ratio, at least one and at most `limit` on each side of the map.
    Where they do not divide the tokens, neighbouring windows overlap by a token. Prefix tokens are left out.
    Second, bool `[B, M]`: which of them exist, where some tokens of a sequence are padding; otherwise None.
    """
    x, feat_size = layout.grid(x), layout.feat_size
    if layout.grid_mask is not None:
        return run_averages(x, layout.grid_mask, sr_ratio, None if limit is None else limit[0])
    # A sequence has one column.
    grid = (max(1, feat_size[0] // sr_ratio), max(1, feat_size[1] // sr_ratio))
    if limit is not None:
        grid = (smaller(grid[0], limit[0]), smaller(grid[1], limit[1]))
    maps = x.flatten(0, 1).mT
    if landmarks == "segment":
        tokens = window_averages(maps[:, :, None], (1, grid[0] * grid[1])).flatten(2)
    else:
        tokens = window_averages(maps.unflatten(2, feat_size), grid).flatten(2)
    return tokens.mT.unflatten(0, x.shape[:2]), None
