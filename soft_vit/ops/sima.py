"""SimA: attention of l1-normalised queries and keys (Koohpayegani and Pirsiavash 2022, arXiv 2206.08898)."""

import torch
from torch import Tensor

from soft_vit.ops.layout import WHOLE
from soft_vit.ops.numerics import at_least_float32, full_precision
from soft_vit.ops.packed import AnyLayout


def sima_attention(q: Tensor, k: Tensor, v: Tensor, layout: AnyLayout = WHOLE) -> Tensor:
    """Return `Q^ (K^^T V)` of q, k and v `[B, H, N, D]`, at least fp32 inside.

    Each feature is divided by the sum of its magnitudes over the valid tokens.
    """
    with full_precision(q):
        q, k, wide = (layout.zero_padded(at_least_float32(x)) for x in (q, k, v))
        sums = (layout.total(torch.linalg.vector_norm(x, 1, dim=2, keepdim=True)) for x in (q, k))
        q, k = (x / total.clamp(min=1e-12) for x, total in zip((q, k), sums, strict=True))
        return (q @ layout.total(k.mT @ wide)).to(v.dtype)
