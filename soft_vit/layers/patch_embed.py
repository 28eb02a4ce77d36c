"""Convolutional patch embedding: 3x3 convolutions with BatchNorm and ReLU."""

import torch
from torch import Tensor, nn

from soft_vit.ops.numerics import in_function_transform


class ConvNormAct(nn.Module):
    """3x3 convolution with bias, BatchNorm, ReLU: `[B, C, H, W]` to `[B, C', ceil(H / stride), ceil(W / stride)]`."""

    def __init__(self, in_chans: int, out_chans: int, stride: int, device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.conv = nn.Conv2d(in_chans, out_chans, kernel_size=3, stride=stride, padding=1, **dd)
        self.norm = nn.BatchNorm2d(out_chans, **dd)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class ConvPatchEmbed(nn.Sequential):
    """Units of `ConvNormAct`, one for each (channels, stride); odd maps are rounded up, by the zero padding."""

    def __init__(
        self, in_chans: int, channels: tuple[int, ...], strides: tuple[int, ...], device=None, dtype=None
    ) -> None:
        units = []
        for out_chans, stride in zip(channels, strides, strict=True):
            units.append(ConvNormAct(in_chans, out_chans, stride, device=device, dtype=dtype))
            in_chans = out_chans
        super().__init__(*units)

    def forward(self, x: Tensor) -> Tensor:
        # Channels-last maps and [B, N, C] tokens are the same memory, so nothing is copied between them.
        # torch.func.vmap cannot ask for that layout.
        if not in_function_transform():
            x = x.contiguous(memory_format=torch.channels_last)
        for unit in self:
            x = unit(x)
        return x
