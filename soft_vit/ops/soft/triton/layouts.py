"""The order of `[B, H, N, D]` in memory. Results are laid out like their inputs, so that no copy follows."""

from collections.abc import Sequence

import torch
from torch import Tensor

Shape = Sequence[int]


def layout_of(x: Tensor) -> str:
    """Return the order of `[B, H, N, D]` in memory.

    `maps` for a view of feature maps `[B, H, D, N]`, `tokens` for one of tokens `[B, N, H, D]`, otherwise `heads`.
    """
    _, head, token, channel = x.stride()
    if token == 1 and channel != 1:
        return "maps"
    return "tokens" if x.shape[1] > 1 and head < token else "heads"


def strides_of(shape: Shape, layout: str) -> tuple[int, ...]:
    """Return the strides of a dense `[B, H, N, D]` in the order of layout."""
    _, H, N, D = shape
    if layout == "maps":
        return (H * D * N, D * N, 1, N)
    if layout == "tokens":
        return (N * H * D, D, H * D, 1)
    return (H * N * D, N * D, D, 1)


def empty(shape: Shape, layout: str, like: Tensor) -> Tensor:
    """Allocate `[B, H, N, D]` with the dtype and device of like, in the order of layout."""
    return torch.empty_strided(shape, strides_of(shape, layout), dtype=like.dtype, device=like.device)
