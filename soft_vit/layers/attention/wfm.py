"""Dynamic layers of WeightFormer, whose weights follow from pooled tokens (He et al. 2026, arXiv 2605.01711).

Letters: B batch, P prefix tokens, N tokens of a map of Y rows and X columns, M pooled tokens, C channels, D channels of
a result.
"""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, Traits, zero_padding
from soft_vit.layers.embed import map_to_tokens, tokens_to_map
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.ops.inline import KERNEL, convolve_each_image
from soft_vit.ops.landmarks import cell_weights
from soft_vit.ops.layout import Layout, window
from soft_vit.ops.numerics import at_least_float32, full_precision
from soft_vit.ops.ttt import damped_step

PREFIX = "as all tokens, but left out of the convolution and of what the weights are made from"


class DynamicConv(nn.Module):
    """A depthwise convolution by the kernels `w + g / (|g| + 1)` of each image.

    Two 1 x 1 convolutions make g from averages over as many cells of the map as a kernel has taps.
    """

    def __init__(self, dim: int, sequence: bool = False, **dd: Any) -> None:
        super().__init__()
        self.sequence = sequence
        self.w = nn.Parameter(torch.empty(dim, 1, *window(KERNEL, sequence), **dd))
        self.b = nn.Parameter(torch.empty(dim, **dd))
        self.wfm = nn.Sequential(nn.Conv2d(dim, dim, 1, **dd), nn.GELU(), nn.Conv2d(dim, dim, 1, bias=False, **dd))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw truncated normal values (0.02) for the learned kernels and the bias."""
        for parameter in (self.w, self.b):
            trunc_normal_(parameter, std=0.02)

    def forward(self, maps: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve maps `[B, C, Y, X]`, which are zero where mask `[B, Y, X]` is False: on the right and below."""
        (Y, X), taps = maps.shape[2:], self.w.shape[2:]
        counts = (Y, X) if mask is None else (mask.any(2).sum(1, keepdim=True), mask.any(1).sum(1, keepdim=True))
        with full_precision(maps):
            tokens = at_least_float32(map_to_tokens(maps))
            # Places of tokens instead of a product of rows and columns, and no remainder: exporters take sizes then.
            place = torch.arange(Y * X, device=maps.device)
            row = place // X
            places = (row, taps[0], counts[0]), (place - row * X, taps[1], counts[1])
            rows, columns = (
                cell_weights(of, torch.arange(cells, device=maps.device)[None], cells, count, tokens.dtype)
                for of, cells, count in places
            )
            weights = (rows[:, :, None] * columns[:, None]).flatten(1, 2)
            cells = (weights @ tokens).mT.unflatten(2, taps).to(maps.dtype)
        g = at_least_float32(self.wfm(cells)).flatten(2)
        kernels = damped_step(self.w.flatten(1), -g, dim=2).to(maps.dtype)
        # In one order of memory, which exporters need to add the taps of maps of any size.
        maps = maps.contiguous() if torch.compiler.is_compiling() else maps
        return convolve_each_image(maps, kernels, self.sequence) + self.b[:, None, None]


class DynamicLinear(nn.Module):
    """`x (w + m / (|m| + 1)) + b` with a matrix m for each image, the norm that of each column.

    m is the mean over the tokens of `(silu(k) w1)^T (silu(v) w2) / sqrt(C)`, where one linear layer makes k and v from
    averages over windows of 2 x 2 tokens. Windows that are not whole count as zero.
    """

    def __init__(self, dim: int, out_dim: int, sequence: bool = False, **dd: Any) -> None:
        super().__init__()
        self.window = window(2, sequence)
        self.w = nn.Parameter(torch.empty(dim, out_dim, **dd))
        self.b = nn.Parameter(torch.empty(out_dim, **dd))
        self.w1 = nn.Parameter(torch.empty(dim // 4, dim, **dd))
        self.w2 = nn.Parameter(torch.empty(out_dim // 4, out_dim, **dd))
        self.wfm = Linear(dim, dim // 4 + out_dim // 4, **dd)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw truncated normal values (0.02) for all parameters except those of the inner layer."""
        for parameter in (self.w, self.b, self.w1, self.w2):
            trunc_normal_(parameter, std=0.02)

    def pooled(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor | None]:
        """Return averages `[B, M, C]` of tokens, and as bool `[B, M]` which are those of whole windows; None: all."""
        grid, mask = x[:, layout.num_prefix_tokens :], layout.grid_mask
        if layout.grid_size[0] < self.window[0] or layout.grid_size[1] < self.window[1]:
            return grid[:, :0], None
        averages = map_to_tokens(F.avg_pool2d(tokens_to_map(grid, layout.grid_size), self.window))
        if mask is not None:
            mask = F.avg_pool2d(mask.unflatten(1, layout.grid_size)[:, None].float(), self.window).flatten(1) == 1
        return averages, mask

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Map tokens `[B, P + N, C]` to `[B, P + N, D]`. Prefix tokens have no part in m."""
        averages, mask = self.pooled(x, layout)
        k, v = self.wfm(averages).split([len(self.w1), len(self.w2)], dim=-1)
        k, v = zero_padding(F.silu(k) @ self.w1, mask), F.silu(v) @ self.w2
        with full_precision(x):
            count: Any = layout.grid_size[0] * layout.grid_size[1]
            if layout.grid_mask is not None:
                count = layout.grid_mask.sum(1).clamp(min=1)[:, None, None]
            m = at_least_float32(k).mT @ at_least_float32(v) * k.shape[-1] ** -0.5 / count
            weight = damped_step(self.w, -m, dim=-2).to(x.dtype)
        return x @ weight + self.b


class WeightFormerAttention(Attention):
    """`proj(gelu((x + x * k) W + b))`: kernels k and a matrix W that are learned, plus a part made from each image.

    Not an attention: no token is compared with another. The layers are those of WeightFormer's blocks, which have more
    channels in between, and a norm. No attention matrix exists, as the result is not linear in any values. num_heads
    must divide the width, and is otherwise ignored.
    """

    traits = Traits("N", PREFIX, mask_refusal=None, qk=None)

    def __init__(self, dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        dd = device_and_dtype(options)
        self.conv = DynamicConv(dim, self.sequence, **dd)
        self.linear = DynamicLinear(dim, dim, self.sequence, **dd)
        self.proj = Linear(dim, dim, **dd)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        mask = layout.grid_mask
        maps = tokens_to_map(x[:, layout.num_prefix_tokens :], layout.grid_size)
        local = map_to_tokens(self.conv(maps, None if mask is None else mask.unflatten(1, layout.grid_size)))
        x = zero_padding(x + layout.pad_prefix(local), layout.mask)
        return self.proj_drop(self.proj(F.gelu(self.linear(x, layout))))
