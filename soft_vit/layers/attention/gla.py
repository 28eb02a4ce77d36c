"""Gated linear attention in both directions, of ViG (Liao et al. 2024, arXiv 2405.18425).

Letters: B batch, H heads, P prefix tokens, N tokens of a map, C channels, D channels of a head, M features of one.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, Traits, convolve_grid, depthwise_conv
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.ops.gated import gated_linear_attention
from soft_vit.ops.layout import Layout, split_heads
from soft_vit.ops.numerics import at_least, at_least_float32

# Gates are the sigmoid to the power of one over this, so that they begin close to one.
GATE_POWER = 16
NORM_EPS = 1e-6


class WideRMSNorm(nn.RMSNorm):
    """An RMSNorm of `[..., D]` of any dtype, whose result is at least fp32."""

    def forward(self, x: Tensor) -> Tensor:
        # The sum of x * x, as the gradients of the mean and of the square take more passes.
        x, width = at_least_float32(x), x.shape[-1]
        inverse = ((x * x).sum(-1, keepdim=True) + width * NORM_EPS).rsqrt()
        return x * inverse * (width**0.5 * at_least_float32(self.weight))


class GatedLinearAttention(Attention):
    """`proj(r norm(y) + (1 - r) norm(u))`: scans y of the tokens in both directions, in which a state decays by gates.

    u are the tokens after a 3x3 depthwise convolution, and r is a sigmoid of them. A scan takes all tokens row by row.
    It adds `k_t v_t^T` to a state of M = D / 2 features, which decay by gates of each token, and reads it by q_t. It
    has no denominator, so both parts have an RMSNorm over each head. The log gates are `logsigmoid(.) / 16`.

    act: apply SiLU to u and to what is projected.
    gate_rank: rank of the layer that gives the gates.
    scale: factor of the sum of both directions before its norm, which matters only for small sums.
    """

    # Norms, rotations and convolutions are of the width of a head, queries and keys of half of it.
    traits = Traits("N", "as all tokens, before the map, but left out of the convolution", mask_refusal=None, qk=None)

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        act: bool = False,
        gate_rank: int = 16,
        scale: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, **options)
        dd = device_and_dtype(options)
        rank, self.scale = at_least("gate_rank", gate_rank), scale
        self.key_width = num_heads * ((self.head_dim + 1) // 2)
        self.act: nn.Module = nn.SiLU() if act else nn.Identity()
        self.in_proj = nn.Sequential(depthwise_conv(dim, 3, self.sequence, bias=False, **dd))
        self.qkv_proj = Linear(dim, 2 * self.key_width + dim, bias=qkv_bias, **dd)
        self.gk_proj = nn.Sequential(Linear(dim, rank, bias=False, **dd), Linear(rank, 2 * self.key_width, **dd))
        self.g_norm, self.l_norm = (WideRMSNorm(self.head_dim, eps=NORM_EPS, **dd) for _ in range(2))
        self.g_proj = Linear(dim, dim, **dd)
        self.proj = Linear(dim, dim, bias=False, **dd)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, ahead: Tensor, back: Tensor, layout: Layout) -> Tensor:
        """Return the scaled sum of both scans `[B, H, P + N, D]`, in at least fp32, for queries, keys and log gates."""
        k, v, ahead, back = map(layout.zero_padded, (k, v, ahead, back))
        return gated_linear_attention(q, k, v, ahead, back, self.scale * q.shape[3] ** -0.5)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        u = self.act(convolve_grid(x, self.in_proj, layout))
        sizes, width = [self.key_width] * 2, x.shape[2]
        q, k, v = (split_heads(part, self.num_heads) for part in self.qkv_proj(u).split([*sizes, width], dim=-1))
        log_gates = F.logsigmoid(at_least_float32(self.gk_proj(u))) / GATE_POWER
        ahead, back = (split_heads(part, self.num_heads) for part in log_gates.split(sizes, dim=-1))
        # Tokens before heads in memory, for one copy and not one for each operation.
        y = self.g_norm(self.attend(q, k, v, ahead, back, layout).transpose(1, 2).contiguous()).flatten(2).to(u.dtype)
        near = self.l_norm(u.unflatten(2, (self.num_heads, -1))).flatten(2).to(u.dtype)
        return self.proj_drop(self.proj(self.act(torch.lerp(near, y, self.g_proj(u).sigmoid()))))
