"""The mLSTM layer of ViL (Alkin et al. 2024, arXiv 2406.04303): a matrix memory along the rows of the map.

Letters: B batch, H heads, P prefix tokens, N tokens of a map, T = P + N, C channels, I = 2 C inner channels, D = I / H.
"""

import math
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, Traits, convolve_grid, depthwise_conv, zero_padding
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.ops.layout import Layout, merge_heads, split_heads
from soft_vit.ops.mlstm import CLOSED, mlstm
from soft_vit.ops.numerics import at_least_float32, check_choice

PREFIX = "as all tokens, before the map, but left out of a convolution of the map"
Direction = Literal["both", "forward", "backward"]
# Channels that a projection of queries, keys or values takes together.
GROUP = 4
# Groups that are multiplied by one matrix.
JOINED = 4


class ResidualLayerNorm(nn.LayerNorm):
    """A LayerNorm of `[..., C]` that multiplies by one plus its weight."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, 1 + self.weight, self.bias, self.eps)


class HeadNorm(ResidualLayerNorm):
    """The norm of each head `[B, H, T, D]` of at least fp32, as tokens `[B, T, I]`, with weights of any dtype."""

    def forward(self, x: Tensor) -> Tensor:
        x = merge_heads(F.layer_norm(x, x.shape[3:], eps=self.eps)) * (1 + at_least_float32(self.weight))
        return x if self.bias is None else x + at_least_float32(self.bias)


class GroupedLinear(nn.Module):
    """A linear layer of each group of four channels of tokens `[B, T, I]`."""

    def __init__(self, dim: int, bias: bool, **dd: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim // GROUP, GROUP, GROUP, **dd))
        self.bias = nn.Parameter(torch.empty(dim, **dd)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        groups = self.weight.shape[0]
        # The variance 2 / (5 C) for groups of I = 2 C channels.
        nn.init.normal_(self.weight, std=(2 / (5 * groups * GROUP // 2)) ** 0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        # Some groups at once, with zeros between them: products of so few numbers cost more than these.
        joined = math.gcd(len(self.weight), JOINED)
        blocks = self.weight.unflatten(0, (-1, joined)).permute(0, 3, 2, 1).diag_embed()
        weight = blocks.permute(0, 3, 1, 4, 2).flatten(3).flatten(1, 2)
        y = x.flatten(0, 1).unflatten(1, (-1, joined * GROUP)).transpose(0, 1) @ weight
        y = y.transpose(0, 1).reshape(x.shape)
        return y if self.bias is None else y + self.bias


class Gate(nn.Module):
    """A linear layer of tokens `[B, T, I]` to a gate of each head, which does not depend on the tokens at first.

    Input gates begin at one, forget gates so that heads remember for different times.
    """

    def __init__(self, dim: int, num_heads: int, forgets: bool, **dd: Any) -> None:
        super().__init__()
        self.forgets = forgets
        self.weight = nn.Parameter(torch.empty(num_heads, dim, **dd))
        self.bias = nn.Parameter(torch.empty(num_heads, **dd))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        if self.forgets:
            self.bias.copy_(torch.linspace(3, 6, len(self.bias)))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class MLSTMCell(nn.Module):
    """The gates of a memory, from queries, keys and values side by side, and the norm of each head's readings.

    dim: I, of each of the three.
    """

    def __init__(self, dim: int, num_heads: int, bias: bool, **dd: Any) -> None:
        super().__init__()
        self.igate = Gate(3 * dim, num_heads, False, **dd)
        self.fgate = Gate(3 * dim, num_heads, True, **dd)
        self.outnorm = HeadNorm(dim, bias=bias, **dd)


class MLSTMAttention(Attention):
    """`proj_down((norm(h) + skip s) silu(z))` with the readings h of a matrix memory along the tokens, row by row.

    A linear layer gives a and z, of twice the channels. s is silu of a after a depthwise convolution. Queries and keys
    are layers of s, values of a. Each head has an input gate, an exponential, and a forget gate, a sigmoid. A token
    reads those before it and itself.

    direction: `forward`; `backward` for the reversed sequence of tokens, map and all, with which the blocks of ViL
        alternate; or `both`, the sum of the readings in both directions.
    bias: of the layers and the norm, as in version 2 of ViL.
    conv1d: convolve four tokens along the sequence instead of 3x3 on the map, as in version 1.
    """

    traits = Traits("N", PREFIX, mask_refusal=None, qk=None)

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        direction: Direction = "both",
        bias: bool = True,
        conv1d: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, **options)
        dd = device_and_dtype(options)
        self.direction = check_choice("direction", direction, get_args(Direction))
        inner = 2 * dim
        self.proj_up = Linear(dim, 2 * inner, bias=bias, **dd)
        self.conv: nn.Conv1d | nn.Conv2d
        if conv1d:
            self.conv = nn.Conv1d(inner, inner, 4, groups=inner, **dd)
            if not self.sequence:
                self.declare(mask_refusal="the convolution runs from the end of a row into the next one")
        else:
            self.conv = depthwise_conv(inner, 3, self.sequence, **dd)
        self.q_proj, self.k_proj, self.v_proj = (GroupedLinear(inner, bias, **dd) for _ in range(3))
        self.mlstm_cell = MLSTMCell(inner, num_heads, bias, **dd)
        self.learnable_skip = nn.Parameter(torch.empty(inner, **dd))
        self.proj_down = Linear(inner, dim, bias=bias, **dd)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.learnable_skip)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, igate: Tensor, fgate: Tensor, layout: Layout) -> Tensor:
        """Return h `[B, H, T, D]`, at least fp32, for q, k, v `[B, H, T, D]` and gates `[B, H, T]`."""
        if layout.mask is not None:
            padding = ~layout.mask[:, None]
            igate, fgate = igate.masked_fill(padding, CLOSED), fgate.masked_fill(padding, -CLOSED)
        read = partial(mlstm, q, k, v, igate, fgate)
        return read() + read(backward=True) if self.direction == "both" else read(backward=self.direction == "backward")

    def convolve(self, x: Tensor, layout: Layout) -> Tensor:
        """Convolve tokens `[B, T, I]`; in the backward direction, with the kernel reversed."""

        def turned(x: Tensor) -> Tensor:
            return x.flip(tuple(range(2, x.ndim))) if self.direction == "backward" else x

        if isinstance(self.conv, nn.Conv1d):
            return turned(self.conv(F.pad(turned(x.mT), (3, 0)))).mT
        return convolve_grid(x, lambda grid: turned(self.conv(turned(grid))), layout)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        a, z = self.proj_up(x).chunk(2, dim=2)
        s = F.silu(self.convolve(zero_padding(a, layout.mask), layout))
        q, k, v = self.q_proj(s), self.k_proj(s), self.v_proj(a)
        cell, qkv = self.mlstm_cell, torch.cat([q, k, v], dim=2)
        q, k, v = (split_heads(part, self.num_heads) for part in (q, k, v))
        h = self.attend(q, k, v, at_least_float32(cell.igate(qkv)).mT, at_least_float32(cell.fgate(qkv)).mT, layout)
        y = torch.addcmul(cell.outnorm(h).to(s.dtype), self.learnable_skip.to(s.dtype), s) * F.silu(z)
        return self.proj_drop(self.proj_down(y))
