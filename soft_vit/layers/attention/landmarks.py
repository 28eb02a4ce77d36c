"""Landmarks: a few tokens that stand for all of a map."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Landmarks = Literal["grid", "segment"]


def landmark_tokens(
    x: Tensor, feat_size: tuple[int, int], sr_ratio: int, limit: tuple[int, int] | None, landmarks: Landmarks = "grid"
) -> Tensor:
    """Averages `[B, H, M, D]` of tokens `[B, H, N, D]`: over a grid of windows of the map, or over runs of tokens.

    There are as many as whole windows of side sr_ratio, at least one and at most `limit` on each side of the map.
    Where they do not divide the tokens, neighbouring windows overlap by a token.
    """
    grid = (max(1, feat_size[0] // sr_ratio), max(1, feat_size[1] // sr_ratio))
    if limit is not None:
        grid = (min(grid[0], limit[0]), min(grid[1], limit[1]))
    maps = x.flatten(0, 1).mT
    if landmarks == "segment":
        tokens = F.adaptive_avg_pool1d(maps, grid[0] * grid[1])
    else:
        tokens = F.adaptive_avg_pool2d(maps.unflatten(2, feat_size), grid).flatten(2)
    return tokens.mT.unflatten(0, x.shape[:2])
