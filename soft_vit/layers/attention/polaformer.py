"""Polarity-aware linear attention of PolaFormer (Meng et al. 2025, arXiv 2501.15061).

Letters: B batch, H heads, P prefix tokens, N tokens of a map, C channels, D channels of a head, W those of half a head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.placed import PlacedAttention
from soft_vit.ops.by_heads import by_heads
from soft_vit.ops.layout import FeatSize, Layout
from soft_vit.ops.numerics import at_least_float32, full_precision

# Exponents lie between 1 and 1 + ALPHA.
ALPHA = 4.0
# Added to the mean weight of a row.
EPS = 1e-6


def polar_features(x: Tensor, power: Tensor) -> Tensor:
    """`[relu(x)^p, relu(-x)^p]` of `[B, H, P + N, D]`, `[B, H, P + N, 2 D]`, for `p = 1 + 4 sigmoid(power)`."""
    raised = x.abs() ** (1 + ALPHA * power.sigmoid())
    positive = x > 0
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    return torch.cat([torch.where(positive, raised, zero), torch.where(positive, zero, raised)], dim=-1)


def largest(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """The largest of features, 1 where all are zero; a factor that a quotient does not depend on."""
    x = x.detach().amax(dim, keepdim=True)
    return torch.where(x > 0, x, 1.0)


@by_heads
def polar_attention(q: Tensor, k: Tensor, v: Tensor, power: Tensor, layout: Layout) -> Tensor:
    """Pairs of like signs mix the first half of the values, pairs of unlike signs the second.

    q, k: `[B, H, P + N, D]`. v: `[B, 2 H, P + N, W]`, both halves of a head one after the other. power: `[1, H, 1, D]`.
    The result has v's shape and dtype; everything inside is at least fp32. Rows are divided by their sum plus 1e-6 for
    each token.
    """
    with full_precision(q):
        dtype, power = v.dtype, at_least_float32(power)
        q, k = (polar_features(at_least_float32(x), power) for x in (q, k))
        k = layout.keep(k)
        v = layout.keep(at_least_float32(v)).unflatten(1, (q.shape[1], 2))
        # So scaled, products of fifth powers do not overflow.
        q_size, k_size = largest(q, -1), largest(k, (-2, -1))
        q, k, count = q / q_size, k / k_size, layout.num_tokens(k)
        # Unlike signs are like ones after the halves of either side are swapped: those of the state, which is small.
        halves = v.shape[-1]
        state = k.mT @ v.transpose(2, 3).flatten(3) / count
        like, unlike = state.split(halves, dim=-1)
        mean = k.sum(2)[..., None] / count
        swapped = q.shape[-1] // 2
        weighted = (q @ torch.cat([like, unlike.roll(swapped, 2)], dim=-1)).unflatten(3, (2, halves))
        total = q @ torch.cat([mean, mean.roll(swapped, 2)], dim=-1) + EPS / (q_size * k_size)
        return (weighted / total[..., None]).transpose(2, 3).flatten(1, 2).to(dtype)


def halved(v: Tensor) -> Tensor:
    """Values `[B, H, N, D]` as halves of heads `[B, 2 H, N, W]`; of an odd D the first has a zero before it."""
    first, second = v.split([v.shape[3] // 2, v.shape[3] - v.shape[3] // 2], dim=3)
    return torch.stack([F.pad(first, (v.shape[3] % 2, 0)), second], dim=2).flatten(1, 2)


def unhalved(x: Tensor, head_dim: int) -> Tensor:
    """The inverse of `halved`, for heads of head_dim channels."""
    first, second = x.unflatten(1, (-1, 2)).unbind(2)
    return torch.cat([first[..., head_dim % 2 :], second], dim=-1)


# Leaves of symbolic tracing: they look at sizes and dtypes.
torch.fx.wrap("halved")
torch.fx.wrap("polar_attention")
torch.fx.wrap("unhalved")


class PolaFormerAttention(PlacedAttention):
    """`[(Q+ K+^T + Q- K-^T) V1, (Q+ K-^T + Q- K+^T) V2]` over row sums, beside a convolution of V, behind a gate.

    Q+ and Q- are powers of the positive and negative parts, with learned exponents, one for each channel; V1 and V2 are
    the halves of each head.
    Keys have a learned encoding of their place, queries and keys a learned scale for each channel.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: FeatSize,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        dd = {"device": device, "dtype": dtype}
        super().__init__(dim, num_heads, feat_size=feat_size, qkv_bias=qkv_bias, proj_drop=proj_drop, **dd)
        self.g = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.power = nn.Parameter(torch.zeros(1, num_heads, 1, self.head_dim, **dd))

    def reset_parameters(self) -> None:
        """No places, the scale ln 2, and exponents of 3."""
        super().reset_parameters()
        nn.init.zeros_(self.power)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return polar_attention(q, k, v, self.power, layout)

    def values(self, v: Tensor) -> Tensor:
        return halved(v)

    def joined(self, x: Tensor) -> Tensor:
        return unhalved(x, self.head_dim)

    def gated(self, mixed: Tensor, x: Tensor) -> Tensor:
        return mixed * self.g(x)
