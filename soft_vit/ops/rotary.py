"""Rotary embedding of places on a map: pairs of channels turned by angles that grow with the row or the column.

Su et al., arXiv 2104.09864, for two dimensions.

Letters: P prefix tokens, N = Y * X tokens of a map of Y rows and X columns, C channels, K = C // 4 frequencies.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least_float32, full_precision, wide_dtype

BASE = 10000.0


def rotate_by_place(layout: Layout, *tokens: Tensor, end_point: bool = False) -> tuple[Tensor, ...]:
    """Tokens `[..., P + N, C]`, all of one C, with pairs of neighbouring channels turned by their place, at least fp32.

    The first K pairs turn by `row * theta_t`, the next K by `column * theta_t`, `theta_t = BASE^(-t / K)`, or
    `BASE^(-t / (K - 1))` with end_point; rows and columns count from 0. Prefix tokens, which have no place, and the
    last C % 4 channels stay as they are.
    """
    with full_precision(tokens[0]):
        tokens = tuple(at_least_float32(x) for x in tokens)
        cos, sin = place_tables(layout, tokens[0], end_point=end_point)
        return tuple(rotate(x, cos[0, 0], sin[0, 0]) for x in tokens)


def place_angles(feat_size: tuple[int, int], channels: int, like: Tensor, end_point: bool = False) -> Tensor:
    """The angles `[N, 2 * K]` of the pairs of channels at each place, at least fp32, on like's device."""
    return _of_places(*_side_angles(feat_size, channels, like, end_point))


def _side_angles(feat_size: tuple[int, int], channels: int, like: Tensor, end_point: bool) -> tuple[Tensor, Tensor]:
    """The angles of rows `[Y, K]` and of columns `[X, K]`."""
    K = channels // 4
    dd: dict[str, Any] = {"device": like.device, "dtype": wide_dtype(like)}
    theta = BASE ** -(torch.linspace(0, 1, K, **dd) if end_point else torch.arange(K, **dd) / K)
    rows, columns = (torch.arange(side, **dd)[:, None] * theta for side in feat_size)
    return rows, columns


def _of_places(rows: Tensor, columns: Tensor) -> Tensor:
    """The values of rows `[Y, K]` and columns `[X, K]` at each place: `[N, 2 * K]`."""
    shape = rows.shape[0], columns.shape[0], -1
    return torch.cat([rows[:, None].expand(*shape), columns.expand(*shape)], dim=-1).flatten(0, 1)


def place_tables(
    layout: Layout, like: Tensor, channels: int | None = None, end_point: bool = False
) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[1, 1, P + N, 2 * K]` of the angles of the pairs of tokens like these `[..., C]`.

    They are at least fp32. channels: C, where these have others.
    """
    # Of the sides, which are far shorter than all places.
    rows, columns = _side_angles(layout.feat_size, channels or like.shape[-1], like, end_point)
    cos, sin = _of_places(rows.cos(), columns.cos()), _of_places(rows.sin(), columns.sin())
    if layout.num_prefix_tokens:
        before = (0, 0, layout.num_prefix_tokens, 0)
        cos, sin = F.pad(cos, before, value=1.0), F.pad(sin, before)
    return cos[None, None], sin[None, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Tokens `[..., N, C]` turned as these tables `[..., N, 2 * K]` say; see `rotate_by_place`."""
    channels = 2 * cos.shape[-1]
    a, b = x[..., :channels].unflatten(-1, (channels // 2, 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    return torch.cat([turned, x[..., channels:]], dim=-1) if channels < x.shape[-1] else turned
