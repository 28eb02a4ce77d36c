"""Rotary embedding of places on a map (Su et al., arXiv 2104.09864, for two dimensions).

Letters: B batch, P prefix tokens, N = Y * X tokens of a map of Y rows and X columns, C channels, K = C / 4 frequencies.
"""

import torch
from torch import Tensor

from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least_float32, full_precision

BASE = 10000.0


def place_angles(feat_size: tuple[int, int], channels: int, like: Tensor) -> Tensor:
    """The angles `[N, C / 2]` of the pairs of channels at each place, in like's dtype and on its device.

    `y / BASE^(t / K)` for the first K pairs, `x / BASE^(t / K)` for the others.
    """
    (Y, X), K = feat_size, channels // 4
    steps = torch.arange(K, dtype=like.dtype, device=like.device)
    theta = 1.0 / BASE ** (steps / K)
    rows, columns = (torch.arange(side, dtype=like.dtype, device=like.device)[:, None] * theta for side in (Y, X))
    return torch.cat([rows[:, None].expand(Y, X, K), columns[None].expand(Y, X, K)], dim=-1).flatten(0, 1)


def rotate_by_place(layout: Layout, *tokens: Tensor) -> tuple[Tensor, ...]:
    """Tokens `[B, P + N, C]` with their pairs of neighbouring channels turned by their place's angles, at least fp32.

    Prefix tokens have no place and stay as they are. C is a multiple of 4.
    """
    with full_precision(tokens[0]):
        tokens = tuple(at_least_float32(x) for x in tokens)
        angles = place_angles(layout.feat_size, tokens[0].shape[-1], tokens[0])
        cos, sin = angles.cos(), angles.sin()
        return tuple(_rotate(x, cos, sin, layout.num_prefix_tokens) for x in tokens)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, num_prefix_tokens: int) -> Tensor:
    prefix, grid = x[:, :num_prefix_tokens], x[:, num_prefix_tokens:]
    a, b = grid.unflatten(2, (-1, 2)).unbind(-1)
    grid = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(2)
    return torch.cat([prefix, grid], dim=1) if num_prefix_tokens else grid
