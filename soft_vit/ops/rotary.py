"""Rotary embedding of places on a map: pairs of channels turned by an angle that grows with the row or the column.

Su et al., "RoFormer", arXiv 2104.09864; in two dimensions as the code of RAVLT (arXiv 2411.07635) has it.

Letters: B batch, H heads, P prefix tokens, N = Y * X tokens of a map, D channels of a head, M = D // 4 frequencies.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.layout import Layout

# The wavelengths grow from 2 pi places to this many times it.
LONGEST = 10000.0


def place_rotation(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[P + N, 2 * M]` that turn tokens like x `[B, H, P + N, D]` by their places on the map.

    Of the pairs of neighbouring channels, the first M turn by `row * theta_t`, the next M by `column * theta_t`, with
    `theta_t = 10000^(-t / (M - 1))`; rows and columns count from 0. Prefix tokens, and the D % 4 last channels, do not
    turn.
    """
    (Y, X), P, M = layout.feat_size, layout.num_prefix_tokens, x.shape[-1] // 4
    dd = {"device": x.device, "dtype": x.dtype}
    theta = LONGEST ** -torch.linspace(0, 1, M, **dd)
    rows, columns = (torch.arange(side, **dd)[:, None] * theta for side in (Y, X))

    def table(of_rows: Tensor, of_columns: Tensor, prefix: float) -> Tensor:
        # Sines of the sides alone, as there are far fewer than tokens.
        places = torch.cat([of_rows[:, None].expand(-1, X, -1), of_columns.expand(Y, -1, -1)], dim=-1).flatten(0, 1)
        return F.pad(places, (0, 0, P, 0), value=prefix) if P else places

    return table(rows.cos(), columns.cos(), 1.0), table(rows.sin(), columns.sin(), 0.0)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn neighbouring channels (a, b) of x `[B, H, P + N, D]` to `(a cos - b sin, b cos + a sin)`."""
    cos, sin = rotation
    turned = 2 * cos.shape[-1]
    a, b = x[..., :turned].unflatten(-1, (turned // 2, 2)).unbind(-1)
    result = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    return torch.cat([result, x[..., turned:]], dim=-1) if turned < x.shape[-1] else result
