"""Bi-WKV of Vision-RWKV (Duan et al. 2024, arXiv 2403.02308): averages whose weights ignore the query.

Letters: B batch, P prefix tokens, N tokens of a map, T = P + N, C channels.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, Traits, check_heads
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least_float32
from soft_vit.ops.rwkv import biwkv

NO_MASK = "decays belong to the number of tokens, and to 32 chunks of them"


def shift_quarters(x: Tensor, layout: Layout, groups: int = 1) -> Tensor:
    """Return tokens `[B, P + N, C]` whose channels are those of neighbours on the map, zero where there is none.

    groups: number of runs of channels. Of each run, the first quarter comes from the left neighbour, the others from
    the right one, from above and from below. Prefix tokens have no neighbours.
    """
    grid = x[:, layout.num_prefix_tokens :].unflatten(1, layout.grid_size).unflatten(3, (groups, -1))
    left, right, above, below = F.pad(grid, (0, 0, 0, 0, 1, 1, 1, 1)).tensor_split(4, dim=-1)
    parts = left[:, 1:-1, :-2], right[:, 1:-1, 2:], above[:, :-2, 1:-1], below[:, 2:, 1:-1]
    return layout.pad_prefix(torch.cat(parts, dim=-1).flatten(3).flatten(1, 2))


def mixed(x: Tensor, shifted: Tensor, share: Tensor) -> Tensor:
    """Return `share x + (1 - share) shifted` of tokens `[B, T, C]`; share: `[1, 1, C]`."""
    return torch.lerp(shifted, x, share.to(x.dtype))


def ramp(dim: int, power: float, mix: Tensor) -> Tensor:
    """Return `(c / C)^power` for the channels c, in the shape, dtype and device of mix `[1, 1, C]`."""
    return (torch.arange(dim, device=mix.device, dtype=mix.dtype) / dim).pow(power).expand_as(mix)


def zigzag(dim: int, like: Tensor) -> Tensor:
    """Return 0, 1, -1, 0, 1, -1, ... for the channels, `[C]`."""
    return (torch.arange(1, dim + 1, device=like.device) % 3 - 1).to(like.dtype)


class RWKVAttention(Attention):
    """`output(r y)` with averages y of all tokens, per channel, and a gate r = sigmoid(receptance(.)).

    The weight of a token is exp(key), times a decay in the distance along the rows of the map; a token itself has a
    bonus. Decay and bonus are divided by the number of tokens. The linear layers take the channels of each token, mixed
    with those of its four neighbours. The averages are those of the released kernels, see `soft_vit.ops.rwkv`.

    num_heads must divide the width, and is otherwise ignored: each channel is a head. out_norm: a LayerNorm of the
    averages.
    """

    traits = Traits("N", "as all tokens, before the map, but without neighbours", mask_refusal=NO_MASK, qk=None)

    def __init__(self, dim: int, num_heads: int, *, out_norm: bool = False, **options: Any) -> None:
        check_heads(dim, num_heads)
        super().__init__(dim, dim, **options)
        dd = device_and_dtype(options)
        self.spatial_decay, self.spatial_first = (nn.Parameter(torch.empty(dim, **dd)) for _ in range(2))
        shares = (nn.Parameter(torch.empty(1, 1, dim, **dd)) for _ in range(3))
        self.spatial_mix_k, self.spatial_mix_v, self.spatial_mix_r = shares
        self.key, self.value, self.receptance, self.output = (Linear(dim, dim, bias=False, **dd) for _ in range(4))
        self.out_norm = nn.LayerNorm(dim, **dd) if out_norm else nn.Identity()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, layer: int = 0, depth: int = 12) -> None:
        """Set decays, bonuses and shares of neighbours for a block of a network of that depth, as released."""
        place, power, dim = layer / max(depth - 1, 1), 1 - layer / depth, len(self.spatial_decay)
        channel = torch.linspace(0, 1, dim, device=self.spatial_decay.device)
        self.spatial_decay.copy_(8 * channel ** (0.7 + 1.3 * place) - 5)
        self.spatial_first.copy_(zigzag(dim, self.spatial_first) / 2 + math.log(0.3))
        self.spatial_mix_k.copy_(ramp(dim, power, self.spatial_mix_k))
        self.spatial_mix_v.copy_(ramp(dim, power, self.spatial_mix_v) + 0.3 * place)
        self.spatial_mix_r.copy_(ramp(dim, power / 2, self.spatial_mix_r))

    def attend(self, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Return the averages of values v `[B, C, T, D]` by keys k `[B, C, T, 1]`, at least fp32; D is 1 in `mix`."""
        w, u = (at_least_float32(x) / k.shape[2] for x in (self.spatial_decay, self.spatial_first))
        k, v = torch.broadcast_tensors(k, v)
        columns = (x.permute(0, 3, 2, 1).flatten(0, 1) for x in (k, v))
        return biwkv(w, u, *columns).unflatten(0, k.shape[::3]).permute(0, 3, 2, 1)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        shifted = shift_quarters(x, layout)
        k = self.key(mixed(x, shifted, self.spatial_mix_k))
        v = self.value(mixed(x, shifted, self.spatial_mix_v))
        gate = self.receptance(mixed(x, shifted, self.spatial_mix_r)).sigmoid()
        y = self.attend(k.mT[..., None], v.mT[..., None], layout).squeeze(3).mT.to(gate.dtype)
        return self.proj_drop(self.output(gate * self.out_norm(y)))
