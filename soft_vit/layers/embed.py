"""Patch and position embedding: from maps to tokens, at any size."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_function
from torch import Tensor, nn

from soft_vit.layers.plain import conv_norm_act
from soft_vit.ops.layout import Size
from soft_vit.ops.numerics import at_least_float32
from soft_vit.ops.sizes import same_size


def map_to_tokens(x: Tensor) -> Tensor:
    """Return a map `[B, C, H, W]` as tokens `[B, H * W, C]`, row by row; a view of a channels-last map."""
    # In this order, as the other gives the gradient of a single image strides that batch norm on a CPU misreads.
    return x.movedim(1, -1).flatten(1, 2)


def tokens_to_map(x: Tensor, feat_size: Size) -> Tensor:
    """Return tokens `[B, H * W, C]` as a map `[B, C, H, W]`: a channels-last view."""
    # In this order, as the other leaves a single image strides that are not recognised as channels-last.
    return x.unflatten(1, feat_size).movedim(-1, 1)


def channels_last(x: Tensor) -> Tensor:
    """Return a map `[B, C, H, W]` in channels-last memory, where its tokens `[B, N, C]` are a view."""
    # Not by memory formats, which torch.func.vmap does not support, and which keep the strides of a single image.
    return tokens_to_map(map_to_tokens(x).contiguous(), (x.shape[2], x.shape[3]))


class ConvNormAct(nn.Module):
    """Convolution, BatchNorm, ReLU: `[B, C, H, W]` to `[B, C', ceil(H / stride), ceil(W / stride)]`.

    kernel_size: odd. groups: of the convolution. bias: of the convolution. norm, act: use BatchNorm and ReLU.
    """

    def __init__(
        self,
        in_chans: int,
        out_chans: int,
        stride: int = 1,
        kernel_size: int = 3,
        groups: int = 1,
        bias: bool = True,
        norm: bool = True,
        act: bool = True,
        **dd: Any,
    ) -> None:
        super().__init__()
        shape: dict[str, Any] = dict(stride=stride, padding=kernel_size // 2, groups=groups, bias=bias)
        self.conv = nn.Conv2d(in_chans, out_chans, kernel_size, **shape, **dd)
        self.norm = nn.BatchNorm2d(out_chans, **dd) if norm else nn.Identity()
        self.act = nn.ReLU(inplace=True) if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return conv_norm_act(x, self.conv, self.norm, self.act)


class ConvPatchEmbed(nn.Sequential):
    """A sequence of `ConvNormAct`, one for each (channels, stride); sizes of maps are rounded up."""

    def __init__(self, in_chans: int, channels: tuple[int, ...], strides: tuple[int, ...], **dd: Any) -> None:
        shapes = zip((in_chans, *channels[:-1]), channels, strides, strict=True)
        super().__init__(*(ConvNormAct(*shape, **dd) for shape in shapes))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(channels_last(x))


def interpolate_maps(maps: Tensor, size: Sequence[int], mode: str = "bilinear") -> Tensor:
    """Resample maps `[B, C, Y, X]` to `[B, C, *size]` (align_corners=False), in their dtype, at least fp32 inside."""
    return F.interpolate(at_least_float32(maps), size=tuple(size), mode=mode, align_corners=False).to(maps.dtype)


@register_notrace_function
def resample_pos_embed(
    pos_embed: Tensor, grid_size: Size, feat_size: Size, num_prefix_tokens: int = 0, mode: str = "bilinear"
) -> Tensor:
    """Resample a position embedding `[1, P + h*w, C]` of grid_size (h, w) to feat_size (H, W): `[1, P + H*W, C]`.

    The first P entries, of prefix tokens, stay the same. If both sizes are equal, pos_embed itself is returned.
    Half-pixel centres (align_corners=False), as in the released SOFT models.
    """
    if same_size(grid_size, feat_size):
        return pos_embed
    prefix, grid = pos_embed[:, :num_prefix_tokens], pos_embed[:, num_prefix_tokens:]
    grid = map_to_tokens(interpolate_maps(tokens_to_map(grid, grid_size), feat_size, mode))
    return torch.cat([prefix, grid], dim=1) if num_prefix_tokens else grid


def replace_parameter(module: nn.Module, name: str, value: Tensor) -> None:
    """Replace a parameter of a module by a copy of another value, frozen if it is."""
    old = module.get_parameter(name)
    setattr(module, name, nn.Parameter(value.detach().clone(), requires_grad=old.requires_grad))


def grid_of_positions(given: Tensor, own: Tensor, noted: Size | None, num_prefix_tokens: int = 0) -> Size | None:
    """Return the map from which a position embedding `[1, P + n, C]` is resampled; None if it stays as it is.

    own: the embedding of the model. noted: the map that the file notes; if its size does not fit, the map is taken for
    a square.
    """
    count = given.shape[1] - num_prefix_tokens if given.ndim == 3 and given.shape[2] == own.shape[2] else 0
    if noted is not None and math.prod(noted) == count:
        return noted
    side = math.isqrt(max(count, 0))
    return None if given.shape == own.shape or count < 1 or side * side != count else (side, side)
