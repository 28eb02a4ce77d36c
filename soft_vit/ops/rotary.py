"""Rotary position embedding (Su et al., arXiv 2104.09864) on a map.

Pairs of channels are rotated by angles that grow with the row or the column.

Letters: P prefix tokens, N = Y * X tokens of a map of Y rows and X columns, C channels, K = C // 4 frequencies.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least_float32, full_precision, is_eager, wide_dtype

BASE = 10000.0


def rotate_by_position(layout: Layout, *tokens: Tensor, end_point: bool = False) -> tuple[Tensor, ...]:
    """Rotate pairs of neighbouring channels of tokens `[..., P + N, C]`, all of one C, by position, in at least fp32.

    The first K pairs rotate by `row * theta_t`, the next K by `column * theta_t`, with `theta_t = BASE^(-t / K)`, or
    `BASE^(-t / (K - 1))` if end_point; rows and columns count from 0. Prefix tokens and the last C % 4 channels are not
    rotated.
    """
    with full_precision(tokens[0]):
        tokens = tuple(at_least_float32(x) for x in tokens)
        cos, sin = rotary_tables(layout, tokens[0], end_point=end_point)
        return tuple(rotate(x, cos[0, 0], sin[0, 0]) for x in tokens)


def side_angles(feat_size: tuple[int, int], channels: int, like: Tensor, end_point: bool) -> tuple[Tensor, Tensor]:
    """Return the angles of rows `[Y, K]` and of columns `[X, K]`."""
    K = channels // 4
    dd: dict[str, Any] = {"device": like.device, "dtype": wide_dtype(like)}
    theta = BASE ** -(torch.linspace(0, 1, K, **dd) if end_point else torch.arange(K, **dd) / K)
    rows, columns = (torch.arange(side, **dd)[:, None] * theta for side in feat_size)
    return rows, columns


def _at_positions(rows: Tensor, columns: Tensor) -> Tensor:
    """Return values of rows `[Y, K]` and columns `[X, K]` at each position of the map: `[N, 2 * K]`."""
    shape = rows.shape[0], columns.shape[0], -1
    return torch.cat([rows[:, None].expand(*shape), columns.expand(*shape)], dim=-1).flatten(0, 1)


def rotary_tables(
    layout: Layout, like: Tensor, channels: int | None = None, end_point: bool = False
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines `[1, 1, P + N, 2 * K]` of the angles of tokens like these `[..., C]`, at least fp32.

    channels: C; by default that of these tokens.
    """
    # Of rows and columns, which are far fewer than positions.
    rows, columns = side_angles(layout.grid_size, channels or like.shape[-1], like, end_point)
    cos, sin = _at_positions(rows.cos(), columns.cos()), _at_positions(rows.sin(), columns.sin())
    if layout.num_prefix_tokens:
        padding = (0, 0, layout.num_prefix_tokens, 0)
        cos, sin = F.pad(cos, padding, value=1.0), F.pad(sin, padding)
    return cos[None, None], sin[None, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate tokens `[..., N, C]` by tables `[..., N, 2 * K]` of `rotary_tables`."""
    channels = 2 * cos.shape[-1]
    part = x[..., :channels]
    if torch.compiler.is_exporting():
        # A product with a constant matrix turns pairs by 90 degrees; runtimes need longer to take them apart.
        first, second = torch.eye(channels, dtype=x.dtype, device=x.device).unflatten(0, (channels // 2, 2)).unbind(1)
        quarter = torch.stack([second, -first], dim=1).flatten(0, 1)
        cos, sin = (torch.stack([table, table], dim=-1).flatten(-2) for table in (cos, sin))
        rotated = part * cos + part @ quarter * sin
    elif channels == x.shape[-1] and is_eager(x):
        # One product of complex numbers, which no exporter knows, takes a fifth of the time of seven passes.
        pairs = torch.view_as_complex(part.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)
    else:
        a, b = part.unflatten(-1, (channels // 2, 2)).unbind(-1)
        rotated = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    return torch.cat([rotated, x[..., channels:]], dim=-1) if channels < x.shape[-1] else rotated
