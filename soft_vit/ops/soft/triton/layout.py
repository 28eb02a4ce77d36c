"""The order of `[B, H, N, D]` in memory: results are laid out like the inputs they belong to, so no copy follows."""

import torch
from torch import Tensor


def layout_of(x: Tensor) -> str:
    """`maps` where x is a view of feature maps `[B, H, D, N]`, `tokens` of tokens `[B, N, H, D]`, otherwise `heads`."""
    _, head, token, channel = x.stride()
    if token == 1 and channel != 1:
        return "maps"
    return "tokens" if x.shape[1] > 1 and head < token else "heads"


def strides_of(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Strides of a dense `[B, H, N, D]` in the order of layout."""
    _, H, N, D = shape
    if layout == "maps":
        return (H * D * N, D * N, 1, N)
    if layout == "tokens":
        return (N * H * D, D, H * D, 1)
    return (H * N * D, N * D, D, 1)


def empty(shape: tuple[int, ...], layout: str, like: Tensor) -> Tensor:
    """An empty tensor `[B, H, N, D]` with the dtype and device of like, in the order of layout."""
    return torch.empty_strided(shape, strides_of(shape, layout), dtype=like.dtype, device=like.device)
