"""Rotary embedding of places on a map: pairs of channels turned by angles that grow with the row or the column.

Su et al., arXiv 2104.09864, for two dimensions.

Letters: P prefix tokens, N = Y * X tokens of a map of Y rows and X columns, C channels, K = C // 4 frequencies.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least_float32, full_precision

BASE = 10000.0


def rotate_by_place(layout: Layout, *tokens: Tensor, end_point: bool = False) -> tuple[Tensor, ...]:
    """Tokens `[..., P + N, C]`, all of one C, with pairs of neighbouring channels turned by their place, at least fp32.

    The first K pairs turn by `row * theta_t`, the next K by `column * theta_t`, `theta_t = BASE^(-t / K)`, or
    `BASE^(-t / (K - 1))` with end_point; rows and columns count from 0. Prefix tokens, which have no place, and the
    last C % 4 channels stay as they are.
    """
    with full_precision(tokens[0]):
        tokens = tuple(at_least_float32(x) for x in tokens)
        cos, sin = _tables(layout, tokens[0], end_point)
        return tuple(_rotate(x, cos, sin) for x in tokens)


def _tables(layout: Layout, like: Tensor, end_point: bool) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[P + N, 2 * K]` of the angles of the pairs of tokens like these."""
    (Y, X), K = layout.feat_size, like.shape[-1] // 4
    dd = {"device": like.device, "dtype": like.dtype}
    theta = BASE ** -(torch.linspace(0, 1, K, **dd) if end_point else torch.arange(K, **dd) / K)
    rows, columns = (torch.arange(side, **dd)[:, None] * theta for side in (Y, X))

    def table(of_rows: Tensor, of_columns: Tensor, of_prefix: float) -> Tensor:
        places = torch.cat([of_rows[:, None].expand(Y, X, K), of_columns.expand(Y, X, K)], dim=-1).flatten(0, 1)
        P = layout.num_prefix_tokens
        return F.pad(places, (0, 0, P, 0), value=of_prefix) if P else places

    # Of the sides, which are far shorter than all places.
    return table(rows.cos(), columns.cos(), 1.0), table(rows.sin(), columns.sin(), 0.0)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    channels = 2 * cos.shape[-1]
    a, b = x[..., :channels].unflatten(-1, (channels // 2, 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    return torch.cat([turned, x[..., channels:]], dim=-1) if channels < x.shape[-1] else turned
