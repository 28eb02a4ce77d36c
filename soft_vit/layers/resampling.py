"""Weights that belong to a map of tokens, made fit for a map of another size."""

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.layers.sizes import same_size
from soft_vit.ops.numerics import at_least_float32


def interpolate_maps(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps `[B, C, Y, X]` bilinearly (align_corners=False) to `[B, C, *size]`, in their dtype, at least fp32 inside."""
    return F.interpolate(at_least_float32(maps), size=size, mode="bilinear", align_corners=False).to(maps.dtype)


def resample_pos_embed(
    pos_embed: Tensor, grid_size: tuple[int, int], feat_size: tuple[int, int], num_prefix_tokens: int = 0
) -> Tensor:
    """A position embedding `[1, P + h*w, C]` of the grid (h, w), bilinearly resampled to `[1, P + H*W, C]`.

    The slots of the P prefix tokens come first and stay as they are. On the grid itself the embedding is returned
    unchanged. Half-pixel centres (align_corners=False), as the released SOFT models do it.
    """
    grid_size, feat_size = tuple(grid_size), tuple(feat_size)
    if same_size(grid_size, feat_size):
        return pos_embed
    prefix, grid = pos_embed[:, :num_prefix_tokens], pos_embed[:, num_prefix_tokens:]
    grid = interpolate_maps(grid.mT.unflatten(2, grid_size), feat_size)
    return torch.cat([prefix, grid.flatten(2).mT], dim=1)
