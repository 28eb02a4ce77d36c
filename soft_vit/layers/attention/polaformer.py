"""Polarity-aware linear attention of PolaFormer (Meng et al. 2025, arXiv 2501.15061).

Letters: B batch, H heads, P prefix tokens, N tokens of a map, C channels, D channels of a head, W those of half a head.
"""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import get_device_dtype
from torch import Tensor, nn

from soft_vit.layers.attention.positional_key import PositionalKeyAttention
from soft_vit.ops.chunked import map_tokens, max_over_tokens, sum_over_tokens
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least_float32

# Exponents lie between 1 and 1 + ALPHA.
ALPHA = 4.0
# Added to the mean weight of a row.
EPS = 1e-6


def raised(x: Tensor, power: Tensor) -> Tensor:
    """Return `|x|^p` for `p = 1 + 4 sigmoid(power)`, at least fp32."""
    return at_least_float32(x).abs() ** (1 + ALPHA * power.sigmoid())


def polar_features(x: Tensor, power: Tensor) -> Tensor:
    """Return `[relu(x)^p, relu(-x)^p]` of `[B, H, P + N, D]`, `[B, H, P + N, 2 D]`, at least fp32; see `raised`."""
    size, zero = raised(x, power), torch.zeros((), dtype=at_least_float32(x).dtype, device=x.device)
    return torch.cat([torch.where(x > 0, size, zero), torch.where(x > 0, zero, size)], dim=-1)


def positive(x: Tensor) -> Tensor:
    """Return x, and 1 where it is zero; a factor that cancels in a quotient."""
    return torch.where(x > 0, x, 1.0)


def halved(v: Tensor) -> Tensor:
    """Return values `[B, H, N, D]` as halves of heads `[B, 2 H, N, W]`; of an odd D the first has a zero before it."""
    first, second = v.split([v.shape[3] // 2, v.shape[3] - v.shape[3] // 2], dim=3)
    return torch.stack([F.pad(first, (v.shape[3] % 2, 0)), second], dim=2).flatten(1, 2)


def unhalved(x: Tensor, head_dim: int) -> Tensor:
    """Invert `halved`, for heads of head_dim channels."""
    first, second = x.unflatten(1, (-1, 2)).unbind(2)
    return torch.cat([first[..., head_dim % 2 :], second], dim=-1)


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
        # So scaled, products of fifth powers do not overflow.
        k_size = positive(max_over_tokens(raised, (k,), (power,)).amax(3, keepdim=True))

        def state(k: Tensor, v: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
            k = polar_features(k, power) / k_size
            v = at_least_float32(v).unflatten(1, (k.shape[1], 2)).transpose(2, 3).flatten(3)
            return k.mT @ v / count, k.sum(2)[..., None] / count

        def read(q: Tensor, power: Tensor, kv: Tensor, mean: Tensor) -> Tensor:
            q = polar_features(q, power)
            q_size = positive(q.detach().amax(-1, keepdim=True))
            q = q / q_size
            # Unlike signs become like ones when the halves of either side are swapped: of the state, which is small.
            halves, swapped = kv.shape[3] // 2, q.shape[3] // 2
            like, unlike = kv.split(halves, dim=-1)
            weighted = (q @ torch.cat([like, unlike.roll(swapped, 2)], dim=-1)).unflatten(3, (2, halves))
            total = q @ torch.cat([mean, mean.roll(swapped, 2)], dim=-1) + EPS / (q_size * k_size)
            return (weighted / total[..., None]).transpose(2, 3).flatten(1, 2).to(dtype)

        kv, mean = sum_over_tokens(state, (k, v), (power,))
        return map_tokens(read, (q,), (power, kv, mean))

    def values(self, v: Tensor) -> Tensor:
        return halved(v)

    def joined(self, x: Tensor) -> Tensor:
        return unhalved(x, self.head_dim)

    def gated(self, mixed: Tensor, x: Tensor) -> Tensor:
        return mixed * self.g(x)
