"""The selective scan of VMamba (Liu et al. 2024, arXiv 2401.10166): a state of each channel, in four orders of the map.

Letters: B batch, P prefix tokens, N tokens of a map, T = P + N, C channels, D inner channels, R rank of the step sizes.
The four scans are row by row, column by column, and both from the end.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, Traits, check_heads, convolve_grid, depthwise_conv
from soft_vit.layers.attention.vssd import WideLayerNorm, draw_steps
from soft_vit.layers.mlp import HIDDEN_SIZE
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.ops.cpu import on_cpu_without_gradients, softplus
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least, at_least_float32, full_precision
from soft_vit.ops.ssm import selective_scan

# Channels of a token for each of its step sizes' rank.
DIM_PER_RANK = 16
# Of the numbers B and C of a token, so that sums of products with step sizes are finite in fp32.
LARGEST = 1e8
# Elements of the largest tensors of images that go through the scans together: a dozen passes over memory are faster
# where a cache holds what they read.
CACHED = 1 << 20


def by_columns(x: Tensor, grid: tuple[int, int], prefix: int) -> Tensor:
    """Return tokens `[B, P + N, ...]`, of which those of a map (Y, X) lie row by row, with the map column by column.

    With the grid (X, Y), the inverse.
    """
    turned = x[:, prefix:].unflatten(1, grid).transpose(1, 2).flatten(1, 2)
    return torch.cat([x[:, :prefix], turned], dim=1) if prefix else turned


def four_orders(x: Tensor, layout: Layout) -> Tensor:
    """Return tokens `[B, T, ...]` row by row, column by column, and both from the end: `[4, B, T, ...]`."""
    ahead = torch.stack([x, by_columns(x, layout.grid_size, layout.num_prefix_tokens)])
    return torch.cat([ahead, ahead.flip(2)])


class SSMAttention(Attention):
    """`out_proj(norm(y))` with the sum y of four scans of the tokens u, after a 3x3 depthwise convolution and SiLU.

    Each channel has a state, `h_t = exp(delta_t A) h_(t-1) + delta_t B_t u_t`, of which a scan reads `C_t h_t`, plus
    a share of u_t. Step sizes delta of channels, and the numbers B and C of tokens, are layers of u, others for each
    scan. The scans go row by row, column by column, and back.

    num_heads must divide the width, and is otherwise ignored: each channel is a head.

    ssm_ratio: ratio of channels in the scans to those of tokens.
    """

    traits = Traits("N", "as all tokens, before the map, but left out of the convolution", mask_refusal=None, qk=None)

    def __init__(self, dim: int, num_heads: int, *, ssm_ratio: int = 1, **options: Any) -> None:
        check_heads(dim, num_heads)
        inner = at_least("ssm_ratio", ssm_ratio) * dim
        super().__init__(inner, inner, **options)
        dd = device_and_dtype(options)
        self.rank = math.ceil(dim / DIM_PER_RANK)
        self.in_proj = Linear(dim, inner, bias=False, **dd)
        self.conv2d = depthwise_conv(inner, 3, self.sequence, bias=False, **dd)
        self.x_proj_weight = nn.Parameter(torch.empty(4, self.rank + 2, inner, **dd))
        self.dt_projs_weight = nn.Parameter(torch.empty(4, inner, self.rank, **dd))
        self.dt_projs_bias = nn.Parameter(torch.empty(4, inner, **dd))
        self.A_logs = nn.Parameter(torch.empty(4 * inner, 1, **dd))
        self.Ds = nn.Parameter(torch.empty(4 * inner, **dd))
        self.out_norm = WideLayerNorm(inner, **dd)
        self.out_proj = Linear(inner, dim, bias=False, **dd)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw step sizes from 0.001 to 0.1 on a logarithmic scale, and the weights of layers, as released."""
        for weight in (self.x_proj_weight, self.dt_projs_weight):
            nn.init.uniform_(weight, -(weight.shape[2] ** -0.5), weight.shape[2] ** -0.5)
        draw_steps(self.dt_projs_bias)
        nn.init.zeros_(self.A_logs)
        nn.init.ones_(self.Ds)

    def attend(self, given: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Return the sum y of all scans of v `[B, D, T, E]`, at least fp32; E is 1 in `mix`.

        given: `[4, B, T, R + 2]`, for each scan in its order, what step sizes are made of, B and C.
        """
        u, given = at_least_float32(v).permute(3, 0, 2, 1), at_least_float32(given)
        if not on_cpu_without_gradients(u):
            return self.scan(given, u, layout).permute(1, 3, 2, 0)
        E, batch, T, D = u.shape
        numbers, done = 4 * E * T, []
        images, width = max(1, CACHED // (numbers * D)), max(DIM_PER_RANK, HIDDEN_SIZE // numbers)
        for b in range(0, max(1, batch), images):
            part, some = slice(b, b + images), layout
            if layout.mask is not None:
                some = layout._replace(mask=layout.mask[part])
            channels = (slice(c, c + width) for c in range(0, D, width))
            done.append(torch.cat([self.scan(given[:, part], u[:, part, :, c], some, c) for c in channels], dim=3))
        return torch.cat(done, dim=1).permute(1, 3, 2, 0)

    def scan(self, given: Tensor, u: Tensor, layout: Layout, channels: slice = slice(None)) -> Tensor:
        """Return the sum y of all scans of u `[E, B, T, D]`, some channels of all; given: see `attend`."""
        weight, bias = (at_least_float32(x)[:, channels] for x in (self.dt_projs_weight, self.dt_projs_bias))
        rates, shares = (at_least_float32(x).view(4, -1)[:, channels] for x in (self.A_logs, self.Ds))
        delta = torch.baddbmm(bias[:, None], given[..., :-2].flatten(1, 2), weight.mT).unflatten(1, given.shape[1:3])
        delta = softplus(delta)
        if layout.mask is not None:
            delta = delta.masked_fill(~four_orders(layout.mask[..., None], layout), 0)
        B, C = given[..., -2:].clamp(-LARGEST, LARGEST).split(1, dim=3)
        # Columns of v are images of their own.
        E, images = u.shape[0], u.flatten(0, 1)
        A = -rates.exp()[:, None, None].expand(-1, images.shape[0], -1, -1)
        delta, B, C = (x[:, None].expand(-1, E, -1, -1, -1).flatten(1, 2) for x in (delta, B, C))
        parts = (x.flatten(0, 1) for x in (four_orders(images, layout), delta, A, B, C))
        y = selective_scan(*parts).unflatten(0, (4, -1))
        rows, columns = y[:2] + y[2:].flip(2)
        y = rows + by_columns(columns, layout.grid_size[::-1], layout.num_prefix_tokens)
        return torch.addcmul(y, shares.sum(0), images).unflatten(0, (E, -1))

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        u = F.silu(convolve_grid(self.in_proj(x), self.conv2d, layout))
        given = F.linear(u, self.x_proj_weight.flatten(0, 1)).unflatten(2, (4, -1))
        columns = by_columns(given[:, :, 1::2], layout.grid_size, layout.num_prefix_tokens)
        orders = given[:, :, 0], columns[:, :, 0], given[:, :, 2].flip(1), columns[:, :, 1].flip(1)
        with full_precision(x):
            y = self.out_norm(self.attend(torch.stack(orders), u.mT[..., None], layout).squeeze(3).mT)
        return self.proj_drop(self.out_proj(y.to(u.dtype)))
