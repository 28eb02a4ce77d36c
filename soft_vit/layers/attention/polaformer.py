"""Polarity-aware linear attention of PolaFormer (Meng et al. 2025, arXiv 2501.15061).

Letters: B batch, H heads, P prefix tokens, N tokens of a map, C channels, D channels of a head, W those of half a head.
"""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import get_device_dtype
from torch import Tensor, nn

from soft_vit.layers.attention.positional_key import PositionalKeyAttention
from soft_vit.layers.mlp import linear
from soft_vit.ops.chunked import map_tokens, sum_over_tokens
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least_float32

# Exponents lie between 1 and 1 + ALPHA.
ALPHA = 4.0
# Added to the mean weight of a row.
EPS = 1e-6


def log_powers(x: Tensor, power: Tensor) -> Tensor:
    """Return `p log|x|` for `p = 1 + 4 sigmoid(power)`, at least fp32; finite also where x is zero."""
    x = at_least_float32(x).abs()
    return (x + torch.finfo(x.dtype).tiny).log() * (1 + ALPHA * power.sigmoid())


def polar_features(x: Tensor, log_size: Tensor) -> Tensor:
    """Return `exp(log_size)` of `[B, H, P + N, D]` where x is positive, then where it is negative: `[..., 2 D]`."""
    # Not copysign, which ONNX lacks.
    signed = log_size.exp() * x.detach().sign()
    return torch.cat([signed, -signed], dim=-1).relu_()


def halved(v: Tensor) -> Tensor:
    """Return values `[B, H, N, D]` as halves of heads `[B, 2 H, N, W]`; of an odd D the first has a zero before it."""
    v = F.pad(v, (1, 0)) if v.shape[3] % 2 else v
    return v.unflatten(3, (2, -1)).transpose(2, 3).flatten(1, 2)


def unhalved(x: Tensor, head_dim: int) -> Tensor:
    """Invert `halved`, for heads of head_dim channels."""
    return x.unflatten(1, (-1, 2)).transpose(2, 3).flatten(3)[..., -head_dim:]


class PolaFormerAttention(PositionalKeyAttention):
    """`[(Q+ K+^T + Q- K-^T) V1, (Q+ K-^T + Q- K+^T) V2]` over row sums, plus a convolution of V, behind a gate.

    Q+ and Q- are powers of the positive and negative parts, with learned exponents, one for each channel; V1 and V2 are
    the halves of each head.
    Keys have a learned encoding of their position, queries and keys a learned scale for each channel.
    """

    def __init__(self, dim: int, num_heads: int, *, qkv_bias: bool = True, **options: Any) -> None:
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, **options)
        dd = get_device_dtype(self)
        self.g = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.projections = {**self.projections, "g": "g"}  # type: ignore[misc]
        self.power = nn.Parameter(torch.zeros(1, num_heads, 1, self.head_dim, **dd))

    def reset_parameters(self) -> None:
        """Set the encoding to zero, the scale to ln 2, and the exponents to 3."""
        super().reset_parameters()
        nn.init.zeros_(self.power)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Mix the first half of the values by pairs of like signs, the second by pairs of unlike signs.

        q, k: `[B, H, P + N, D]`. v: `[B, 2 H, P + N, W]`, the halves of a head are adjacent. Rows are divided
        by their sum plus 1e-6 for each token. Everything inside is at least fp32.
        """
        dtype, count, power = v.dtype, k.shape[2], at_least_float32(self.power)
        # The powers are divided by the largest of a head's keys or of a query: products of fifth powers would overflow.
        k_largest = log_powers(k.detach().abs().amax(2, keepdim=True), power.detach()).amax(3, keepdim=True)

        def state(k: Tensor, v: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
            k = polar_features(k, log_powers(k, power) - k_largest)
            v = at_least_float32(v).unflatten(1, (k.shape[1], 2)).transpose(2, 3).flatten(3)
            return k.mT @ v / count, k.sum(2)[..., None] / count

        def read(q: Tensor, power: Tensor, kv: Tensor, mean: Tensor) -> Tensor:
            sizes = log_powers(q, power)
            largest = sizes.detach().amax(-1, keepdim=True)
            # Unlike signs become like ones when the halves of either side are swapped: of the state, which is small.
            like, unlike = kv.chunk(2, dim=-1)
            swapped = q.shape[3]
            state = torch.cat([like, unlike.roll(swapped, 2), mean, mean.roll(swapped, 2)], dim=-1)
            x = polar_features(q, sizes - largest) @ state
            weighted, total = x[..., :-2].unflatten(3, (2, -1)), x[..., -2:] + EPS * (-largest - k_largest).exp()
            # As tokens, which the projection takes.
            return (weighted * total.reciprocal()[..., None]).transpose(1, 2).flatten(2, 3).transpose(1, 2).to(dtype)

        kv, mean = sum_over_tokens(state, (k, v), (power,))
        return map_tokens(read, (q,), (power, kv, mean))

    def values(self, v: Tensor) -> Tensor:
        return halved(v)

    def joined(self, x: Tensor) -> Tensor:
        return unhalved(x, self.head_dim)

    def gated(self, mixed: Tensor, x: Tensor) -> Tensor:
        return mixed * linear(x, self.g)
