"""SimA: attention of l1-normalised queries and keys (Koohpayegani and Pirsiavash 2022, arXiv 2206.08898)."""

import torch.nn.functional as F
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention, Traits
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least_float32, full_precision


def sima_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Return `Q^ (K^^T V)` of q, k and v `[B, H, N, D]`, at least fp32 inside.

    Each feature is divided by the sum of its magnitudes over the valid tokens.
    """
    with full_precision(q):
        q, k = (F.normalize(layout.zero_padded(at_least_float32(x)), p=1.0, dim=2) for x in (q, k))
        return (q @ (k.mT @ layout.zero_padded(at_least_float32(v)))).to(v.dtype)


class SimpleAttention(SelfAttention):
    """`Q^ (K^^T V)`, each feature of Q^ and K^ having an l1 norm of one over all tokens; no softmax, no row sums."""

    traits = Traits("N", mask_refusal=None, needs_grid=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return sima_attention(q, k, v, layout)
