"""Polarity-aware linear attention of PolaFormer (Meng et al. 2025, arXiv 2501.15061).

Letters: B batch, H heads, N tokens, D channels of a head, W those of half a head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.chunked import map_tokens, sum_over_tokens
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


def polaformer_attention(q: Tensor, k: Tensor, v: Tensor, power: Tensor) -> Tensor:
    """Mix the first half of the values by pairs of like signs, the second by pairs of unlike signs.

    `[(Q+ K+^T + Q- K-^T) V1, (Q+ K-^T + Q- K+^T) V2]` of q, k `[B, H, N, D]` and v `[B, 2 H, N, W]`, the halves V1 and
    V2 of a head adjacent. Q+ and Q- are powers of the positive and negative parts; power: of which the exponents
    follow, `[1, H, 1, D]`. Rows are divided by their sum plus 1e-6 for each token. Everything inside is at least fp32.
    """
    dtype, count, power = v.dtype, k.shape[2], at_least_float32(power)
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
