"""RWKV-6 in both directions, of Vision-RWKV (Duan et al. 2024, arXiv 2403.02308).

Letters: B batch, H heads, P prefix tokens, N tokens of a map, T = P + N, C channels, D channels of a head, R rank.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, Traits
from soft_vit.layers.attention.rwkv import ramp, shift_quarters, zigzag
from soft_vit.layers.attention.vssd import LIMIT
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.ops.layout import Layout, merge_heads, split_heads
from soft_vit.ops.numerics import at_least, at_least_float32
from soft_vit.ops.rwkv6 import rwkv6

# Of the exponent of a decay: exp(-exp(10)) is zero, and its gradient too.
STRONGEST = 10.0


class HeadNorm(nn.GroupNorm):
    """A GroupNorm of tokens `[..., C]` of at least fp32, with weights of any dtype."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.clamp(-LIMIT, LIMIT).unflatten(-1, (self.num_groups, -1))
        y = F.layer_norm(x, x.shape[-1:], eps=self.eps).flatten(-2)
        return torch.addcmul(at_least_float32(self.bias), y, at_least_float32(self.weight))


class RWKV6Attention(Attention):
    """`output(norm(y) silu(gate(.)))`: scans y of the tokens in both directions, in which a state decays by gates.

    The state of a head adds `k_t v_t^T`, decays by a gate of each feature that depends on the token, and is read by r_t
    before the token is added; the token itself has a bonus. The norm is over each head. What each linear layer takes
    is mixed of a token and its four neighbours, with shares that depend on the token, too.

    mix_rank, decay_rank: of the layers that give these shares and the gates.
    """

    traits = Traits("N", "as all tokens, before the map, but without neighbours", mask_refusal=None, qk=None)

    time_maa_x: nn.Parameter
    time_maa_v: nn.Parameter

    def __init__(self, dim: int, num_heads: int, *, mix_rank: int = 32, decay_rank: int = 64, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        dd = device_and_dtype(options)
        rank, decay_rank = at_least("mix_rank", mix_rank), at_least("decay_rank", decay_rank)
        for part in "xwkvrg":
            setattr(self, f"time_maa_{part}", nn.Parameter(torch.empty(1, 1, dim, **dd)))
        self.time_maa_w1 = nn.Parameter(torch.empty(dim, 5 * rank, **dd))
        self.time_maa_w2 = nn.Parameter(torch.empty(5, rank, dim, **dd))
        self.time_decay = nn.Parameter(torch.empty(1, 1, dim, **dd))
        self.time_decay_w1 = nn.Parameter(torch.empty(dim, decay_rank, **dd))
        self.time_decay_w2 = nn.Parameter(torch.empty(decay_rank, dim, **dd))
        self.time_faaaa = nn.Parameter(torch.empty(num_heads, self.head_dim, **dd))
        linear = (Linear(dim, dim, bias=False, **dd) for _ in range(5))
        self.receptance, self.key, self.value, self.gate, self.output = linear
        self.ln_x = HeadNorm(num_heads, dim, **dd)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, layer: int = 0, depth: int = 12) -> None:
        """Set gates, bonuses and shares of neighbours for a block of a network of that depth, as released."""
        place, power, dim = layer / max(depth - 1, 1), 1 - layer / depth, self.time_decay.shape[2]
        for part in "xwkvrg":
            share = getattr(self, f"time_maa_{part}")
            share.copy_(1 - ramp(dim, power / 2 if part in "rg" else power, share))
        self.time_maa_v.sub_(0.3 * place)
        channel = torch.linspace(0, 1, dim, device=self.time_decay.device)
        self.time_decay.copy_(5 * channel ** (0.7 + 1.3 * place) - 6)
        self.time_faaaa.copy_((place * (1 - channel) + zigzag(dim, channel) / 10).view_as(self.time_faaaa))
        for weight in (self.time_maa_w1, self.time_maa_w2, self.time_decay_w1, self.time_decay_w2):
            nn.init.uniform_(weight, -1e-4, 1e-4)

    def attend(self, r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, layout: Layout) -> Tensor:
        """Return what tokens read `[B, H, T, D]`, at least fp32, for r, k, v and log gates `[B, H, T, D]`."""
        return rwkv6(r, layout.zero_padded(k), layout.zero_padded(v), layout.zero_padded(log_decay), self.time_faaaa)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        step = shift_quarters(x, layout, self.num_heads) - x
        # Shares of the neighbours for gates, keys, values, r and the gate of the result: [5, B, T, C].
        low = ((x + step * self.time_maa_x) @ self.time_maa_w1).tanh().unflatten(2, (5, -1))
        shares = torch.stack([getattr(self, f"time_maa_{part}") for part in "wkvrg"])
        shares = shares + low.permute(2, 0, 1, 3) @ self.time_maa_w2[:, None]
        xw, xk, xv, xr, xg = (x + step * shares).to(x.dtype)
        pairs = (xr, self.receptance), (xk, self.key), (xv, self.value)
        r, k, v = (split_heads(layer(y), self.num_heads) for y, layer in pairs)
        gate = F.silu(self.gate(xg))
        low = at_least_float32((xw @ self.time_decay_w1).tanh() @ self.time_decay_w2)
        log_decay = -(self.time_decay + low).clamp(max=STRONGEST).exp()
        y = self.attend(r, k, v, split_heads(log_decay, self.num_heads), layout)
        return self.proj_drop(self.output(self.ln_x(merge_heads(y)).to(gate.dtype) * gate))
