"""Non-causal state space duality of VSSD (Shi et al. 2024, arXiv 2407.18559): one state for the whole map.

Letters: B batch, H heads, P prefix tokens, N tokens of a map, C channels, S channels of the state, D channels of a
head.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, Traits, depthwise_conv
from soft_vit.layers.attention.gated_rotary import gated
from soft_vit.layers.embed import map_to_tokens, tokens_to_map
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.ops.layout import Layout, merge_heads, split_heads
from soft_vit.ops.numerics import at_least, at_least_float32, full_precision
from soft_vit.ops.vssd import vssd_attention

# Bounds of the first step sizes.
MIN_STEP, MAX_STEP = 1e-3, 0.1
# Of results before their LayerNorm, which squares them in fp32.
LIMIT = 1e16


def draw_steps(bias: Tensor) -> None:
    """Draw numbers, in place, whose softplus are step sizes from 0.001 to 0.1 on a logarithmic scale."""
    step = bias.uniform_(math.log(MIN_STEP), math.log(MAX_STEP)).exp_()
    # The inverse of softplus.
    step.add_(torch.log(-torch.expm1(-step)))


class WideLayerNorm(nn.LayerNorm):
    """A LayerNorm of `[..., C]` of at least fp32, with weights of any dtype."""

    def forward(self, x: Tensor) -> Tensor:
        affine = at_least_float32(self.weight), at_least_float32(self.bias)
        return F.layer_norm(x.clamp(-LIMIT, LIMIT), self.normalized_shape, *affine, self.eps)


class VSSDAttention(Attention):
    """`out(LN(q_i . sum_j w_j k_j v_j^T + D v_i) * z_i)` with weights `w_j = softplus(dt_j + dt_bias) exp(A_log)`.

    Queries and keys, C and B in the paper, are shared by all heads; values have twice the width. All three pass a 3x3
    depthwise convolution and SiLU. The sum is not divided by anything, so it grows with the map; the LayerNorm over all
    channels bounds the result, and a gate z without activation follows.

    d_state: channels of queries and keys.
    """

    traits = Traits("N", "as all tokens, but without neighbours in the convolution", mask_refusal=None, qk=None)

    def __init__(self, dim: int, num_heads: int, *, d_state: int = 64, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        dd = device_and_dtype(options)
        inner, state = 2 * dim, 2 * at_least("d_state", d_state)
        self.parts = [inner, inner + state, num_heads]
        self.in_proj = Linear(dim, sum(self.parts), bias=False, **dd)
        self.conv2d = depthwise_conv(inner + state, 3, self.sequence, **dd)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.empty(num_heads, **dd)) for _ in range(3))
        self.norm = WideLayerNorm(inner, **dd)
        self.out_proj = Linear(inner, dim, bias=False, **dd)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights' factors from 1 to 16, and step sizes from 0.001 to 0.1 on a logarithmic scale."""
        self.A_log.uniform_(1, 16).log_()
        self.D.fill_(1)
        draw_steps(self.dt_bias)

    attend = staticmethod(vssd_attention)

    def convolve(self, x: Tensor, layout: Layout) -> Tensor:
        """Convolve tokens `[B, P + N, C]` on their map; each prefix token is a map of its own."""
        P = layout.num_prefix_tokens
        grid = map_to_tokens(self.conv2d(tokens_to_map(x[:, P:], layout.grid_size)))
        if not P:
            return grid
        prefix = self.conv2d(x[:, :P].reshape(-1, x.shape[2], 1, 1)).view(-1, P, x.shape[2])
        return torch.cat([prefix, grid], dim=1)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        gate, xbc, dt = self.in_proj(x).split(self.parts, dim=-1)
        size = self.parts[0], *[(self.parts[1] - self.parts[0]) // 2] * 2
        v, k, q = F.silu(self.convolve(xbc, layout)).split(size, dim=-1)
        v = split_heads(v, self.num_heads)
        with full_precision(x):
            weights = F.softplus(at_least_float32(dt) + self.dt_bias) * at_least_float32(self.A_log).exp()
            y = self.attend(q[:, None], k[:, None], v, weights.mT[..., None], layout)
            y = y + at_least_float32(v) * self.D[:, None, None]
            y = self.norm(merge_heads(y))
        y = gated(y[:, None], gate[:, None], y.shape[2])[:, 0]
        return self.proj_drop(self.out_proj(y))
