"""Depthwise convolutions of the values, added to the result of an attention."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import depthwise_conv, grid_maps
from soft_vit.layers.embed import channels_last, tokens_to_map
from soft_vit.layers.plain import may_read_weight
from soft_vit.ops.layout import Layout, split_heads
from soft_vit.ops.numerics import at_least


def local_conv(num_heads: int, local_kernel: int | None, sr_ratio: int, sequence: bool, **dd: Any) -> nn.Conv2d | None:
    """Return a `depthwise_conv` without bias of maps `[..., heads, H, W]`, or None for a local_kernel of 0.

    local_kernel: its side, odd; by default the next odd number above sr_ratio.
    """
    side = sr_ratio + 1 + sr_ratio % 2 if local_kernel is None else at_least("local_kernel", local_kernel, 0)
    return depthwise_conv(num_heads, side, sequence, bias=False, **dd) if side else None


def head_maps(v: Tensor, layout: Layout) -> Tensor:
    """Return values `[B, H, P + N, D]` as a map of each head, `[B * H, D, Y, X]`, zero for padding."""
    return tokens_to_map(layout.grid(layout.zero_padded(v)).flatten(0, 1), layout.grid_size)


def add_to_heads(x: Tensor, maps: Tensor, layout: Layout) -> Tensor:
    """Return tokens `[B, H, P + N, D]` plus maps `[B * H, D, Y, X]`; prefix tokens stay as they are."""
    return x + layout.pad_prefix(maps.flatten(2).mT.unflatten(0, x.shape[:2]))


def local_result(v: Tensor, conv: nn.Conv2d, layout: Layout) -> Tensor:
    """Convolve values `[B, H, P + N, D]` on their map, with the one kernel of each head; zero at prefix tokens."""
    num_heads, maps = v.shape[1], grid_maps(v, layout)
    if not may_read_weight(conv):
        of_channels = maps.unflatten(1, (num_heads, -1)).transpose(1, 2)
        maps = conv(of_channels.flatten(0, 1)).unflatten(0, of_channels.shape[:2]).transpose(1, 2).flatten(1, 2)
    else:
        if torch.is_grad_enabled() and v.device.type == "cpu":
            # oneDNN has a fast gradient of the kernel in this order alone; the other takes longer than both.
            maps = channels_last(maps)
        weight = conv.weight.repeat_interleave(v.shape[3], dim=0)
        maps = F.conv2d(maps, weight, padding=conv.padding, groups=maps.shape[1])
    return layout.pad_prefix(split_heads(maps.flatten(2).mT, num_heads))
