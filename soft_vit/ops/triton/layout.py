"""The order of `[B, H, N, D]` in memory: results are laid out like the inputs they belong to, so no copy follows."""

import torch
from torch import Tensor


def layout_of(x: Tensor) -> str:
    """`maps` where x is a view of feature maps `[B, H, D, N]`, `tokens` of tokens `[B, N, H, D]`, otherwise `heads`."""
    if x.stride(2) == 1 and x.stride(3) != 1:
        return "maps"
    return "tokens" if x.shape[1] > 1 and x.stride(1) < x.stride(2) else "heads"


def empty(shape: tuple[int, int, int, int], layout: str, like: Tensor) -> Tensor:
    """An empty tensor `[B, H, N, D]` with the dtype and device of like, in the order of layout."""
    _, H, N, D = shape
    if layout == "maps":
        strides = (H * D * N, D * N, 1, N)
    elif layout == "tokens":
        strides = (N * H * D, D, H * D, 1)
    else:
        strides = (H * N * D, N * D, D, 1)
    return torch.empty_strided(shape, strides, dtype=like.dtype, device=like.device)
