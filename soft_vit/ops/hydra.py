"""Hydra attention: as many heads as channels, with a cosine kernel (Bolya et al. 2022, arXiv 2209.07484)."""

import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.layout import WHOLE
from soft_vit.ops.numerics import at_least_float32, full_precision
from soft_vit.ops.packed import AnyLayout


def channel_attention(q: Tensor, k: Tensor, v: Tensor, layout: AnyLayout = WHOLE) -> Tensor:
    """Return `q^_i * sum_j k^_j * v_j` of q `[B, C, N, 1]`, k and v `[B, C, M, 1]`, at least fp32 inside.

    Each channel is a head; q^ and k^ have length one over all channels. layout: of the keys.
    """
    with full_precision(q):
        q, k = (F.normalize(at_least_float32(x), dim=1) for x in (q, k))
        return (q * layout.total(layout.zero_padded(k * at_least_float32(v)).sum(2, keepdim=True))).to(v.dtype)


def hydra_attention(q: Tensor, k: Tensor, v: Tensor, layout: AnyLayout = WHOLE) -> Tensor:
    """Return `channel_attention` of the channels of all heads: q `[B, H, N, D]`, k and v `[B, H, M, D]`."""
    heads = q.shape[1]
    if v.shape[-1] != k.shape[-1]:
        raise ValueError(f"value must have as many channels as key, {k.shape[-1]}, got {v.shape[-1]}.")
    q, k, v = (x.mT.flatten(1, 2)[..., None] for x in (q, k, v))
    return channel_attention(q, k, v, layout)[..., 0].unflatten(1, (heads, -1)).mT
