"""Hydra attention: as many heads as channels, with a cosine kernel (Bolya et al. 2022, arXiv 2209.07484)."""

import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.layout import WHOLE
from soft_vit.ops.numerics import at_least_float32, full_precision
from soft_vit.ops.packed import AnyLayout


def hydra_attention(q: Tensor, k: Tensor, v: Tensor, layout: AnyLayout = WHOLE) -> Tensor:
    """Return `q^_i * sum_j k^_j * v_j` of q `[B, H, N, D]`, k and v `[B, H, M, D]`, at least fp32 inside.

    Each channel is a head; q^ and k^ have length one over the channels of all H. layout: of the keys.
    """
    heads = q.shape[1]
    if v.shape[-1] != k.shape[-1]:
        raise ValueError(f"value must have as many channels as key, {k.shape[-1]}, got {v.shape[-1]}.")
    with full_precision(q):
        q, k, wide = (at_least_float32(x.mT.flatten(1, 2)[..., None]) for x in (q, k, v))
        q, k = (F.normalize(x, dim=1) for x in (q, k))
        x = (q * layout.total(layout.keep(k * wide).sum(2, keepdim=True))).to(v.dtype)
    return x[..., 0].unflatten(1, (heads, -1)).mT
