"""Depthwise convolutions of the values that stand beside an attention."""

import torch.nn.functional as F
from torch import Tensor, nn


def local_conv(num_heads: int, local_kernel: int | None, sr_ratio: int, device=None, dtype=None) -> nn.Conv2d | None:
    """A `depthwise_conv` without bias of maps `[..., heads, H, W]`; local_kernel None for the next odd number above
    sr_ratio.
    """
    side = sr_ratio + 1 + sr_ratio % 2 if local_kernel is None else local_kernel
    return depthwise_conv(num_heads, side, bias=False, device=device, dtype=dtype)


def depthwise_conv(channels: int, local_kernel: int, bias: bool = True, device=None, dtype=None) -> nn.Conv2d | None:
    """A convolution of maps `[..., channels, H, W]` that keeps their size, with a kernel for each channel.

    local_kernel: its side, odd; None is returned for 0. ValueError for another number.
    """
    if local_kernel == 0:
        return None
    if local_kernel < 0 or local_kernel % 2 == 0:
        raise ValueError(f"local_kernel={local_kernel} has no centre; use an odd side, or 0 for no convolution.")
    padding, dd = local_kernel // 2, {"device": device, "dtype": dtype}
    return nn.Conv2d(channels, channels, local_kernel, padding=padding, groups=channels, bias=bias, **dd)


def depthwise_residual(v: Tensor, weight: Tensor, bias: Tensor, feat_size: tuple[int, int]) -> Tensor:
    """Depthwise convolution of values `[B, H, N, D]` on the map, with a kernel for each channel.

    weight: `[H D, 1, K, K]`, or `[D, 1, K, K]` that heads share.
    """
    B, H, N, D = v.shape
    channels = weight.shape[0]
    maps = v.mT.reshape(B * H * D // channels, channels, *feat_size)
    maps = F.conv2d(maps, weight, bias, padding=weight.shape[-1] // 2, groups=channels)
    return maps.reshape(B, H, D, N).mT
