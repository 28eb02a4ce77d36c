"""What every attention of the pyramid has in common."""

from typing import ClassVar

from torch import Tensor, nn


def check_heads(dim: int, num_heads: int) -> int:
    """The width of one head; ValueError unless num_heads divides dim."""
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f"{num_heads} heads do not divide the width {dim}; choose a divisor of {dim} for num_heads.")
    return dim // num_heads


class Attention(nn.Module):
    """Mixes tokens `x: [B, N, C]` that lie on a map of `feat_size = (H, W)`, `N = H * W`, row by row.

    A subclass takes `(dim, num_heads, *, feat_size, sr_ratio, ..., device, dtype)`: feat_size is the map it is built
    for, sr_ratio the side of the window that one reduced token stands for (8, 4, 2, 1 in the four stages), which
    kinds without reduced tokens ignore.
    """

    cost: ClassVar[str]
    """Growth of time and memory in the number of tokens N, such as "N" or "N^2"."""

    fixed_feat_size: ClassVar[bool] = False
    """Whether the weights belong to one map size; such weights are resampled when a checkpoint has another."""

    needs_grid: ClassVar[bool] = True
    """Whether the tokens must fill the map exactly, which leaves no place for a class token."""

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        raise NotImplementedError
