"""Transformer-VQ: keys replaced by their nearest code vector (Lingle 2023, arXiv 2309.16354).

Letters: B batch, H heads, N tokens, D channels of a head, S codes of a head.
"""

import torch
from torch import Tensor

from soft_vit.ops.chunked import by_heads
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least_float32, full_precision


def nearest_codes(k: Tensor, codebook: Tensor, layout: Layout) -> Tensor:
    """Return the one-hot choice `[B, H, N, S]` of the code `[..., H, S, D]` nearest to each key `[B, H, N, D]`.

    Zero for padding.
    """
    scores = k @ codebook.mT - 0.5 * codebook.square().sum(-1)[..., None, :]
    # Not F.one_hot, which makes integers of eight bytes, and whose check of its indices stops torch.func.vmap.
    chosen = scores.argmax(-1, keepdim=True) == torch.arange(codebook.shape[-2], device=k.device)
    return layout.zero_padded(chosen.to(k.dtype))


@by_heads
def vq_attention(q: Tensor, k: Tensor, v: Tensor, codebook: Tensor, layout: Layout) -> Tensor:
    """Attend to keys that are replaced by their nearest codes, in `N S` products, at least fp32 inside.

    q, k, v: `[B, H, N, D]`, codebook: `[1, H, S, D]`; the result has v's shape and dtype. Equal to dense attention to
    the replaced keys: those of one code share a score, which counts as often as there are keys and acts on the mean of
    their values. The gradient passes straight through a code to the mean of its keys.
    """
    with full_precision(q):
        dtype = v.dtype
        q, k, v, codebook = map(at_least_float32, (q, k, v, codebook))
        chosen = nearest_codes(k.detach(), codebook, layout)
        count = chosen.sum(2)[..., None]
        share = (chosen / count.clamp(min=1).mT).mT
        mean_key, mean_value = share @ layout.zero_padded(k), share @ layout.zero_padded(v)
        codes = codebook + (mean_key - mean_key.detach())
        scores = q @ codes.mT * q.shape[-1] ** -0.5 + count.mT.log()
        return (scores.softmax(-1) @ mean_value).to(dtype)
