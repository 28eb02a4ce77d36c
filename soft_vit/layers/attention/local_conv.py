"""The depthwise convolution of the values that stands beside an attention, one kernel for each head."""

from torch import nn


def local_conv(num_heads: int, local_kernel: int | None, sr_ratio: int, device=None, dtype=None) -> nn.Conv2d | None:
    """A convolution of maps `[..., heads, H, W]` that keeps their size, without bias; None for a kernel of 0.

    local_kernel: its side, odd; None for the next odd number above sr_ratio. ValueError for another number.
    """
    side = sr_ratio + 1 + sr_ratio % 2 if local_kernel is None else local_kernel
    if side == 0:
        return None
    if side < 0 or side % 2 == 0:
        raise ValueError(f"local_kernel={side} has no centre; use an odd side, or 0 for no convolution.")
    return nn.Conv2d(
        num_heads, num_heads, side, padding=side // 2, groups=num_heads, bias=False, device=device, dtype=dtype
    )
