"""Transformer-VQ: keys replaced by their nearest code vector (Lingle 2023, arXiv 2309.16354).

Letters: B batch, H heads, N tokens, D channels of a head, S codes of a head.
"""

from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention
from soft_vit.ops.chunked import by_heads
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least_float32, full_precision, in_backward

# A code with fewer keys than this in its moving average is reset to a key of the batch.
MIN_KEYS = 1e-2


def nearest_codes(k: Tensor, codebook: Tensor, layout: Layout) -> Tensor:
    """Return the one-hot choice `[B, H, N, S]` of the code `[..., H, S, D]` nearest to each key `[B, H, N, D]`.

    Zero where a token does not count.
    """
    scores = k @ codebook.mT - 0.5 * codebook.square().sum(-1)[..., None, :]
    # Not F.one_hot, which makes integers of eight bytes, and whose check of its indices stops torch.func.vmap.
    chosen = scores.argmax(-1, keepdim=True) == torch.arange(codebook.shape[-2], device=k.device)
    return layout.keep(chosen.to(k.dtype))


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
        mean_key, mean_value = share @ layout.keep(k), share @ layout.keep(v)
        codes = codebook + (mean_key - mean_key.detach())
        scores = q @ codes.mT * q.shape[-1] ** -0.5 + count.mT.log()
        return (scores.softmax(-1) @ mean_value).to(dtype)


class Codes(NamedTuple):
    """Code vectors, and the moving averages over keys that give them; training changes all three in place."""

    codebook: Tensor
    """`[H, S, D]`."""
    key_count: Tensor
    """The number of keys that each code is nearest to, `[H, S]`."""
    key_sum: Tensor
    """The sum of those keys, `[H, S, D]`."""


@torch.no_grad()
def refresh(codes: Codes) -> None:
    """Set the codes to the averages of the keys observed so far."""
    mean = codes.key_sum / codes.key_count.clamp(min=MIN_KEYS)[..., None]
    codes.codebook.copy_(torch.where(codes.key_count[..., None] > 0, mean, codes.codebook))


@torch.no_grad()
def observe(codes: Codes, k: Tensor, layout: Layout, decay: float, repeated: bool = False) -> None:
    """Add the keys k `[B, H, N, D]`, of all processes, to the averages for the codes that they are nearest to.

    decay: of the averages. repeated: they have been added before; still draw random numbers, so that a later
    dropout draws the same as before.
    """
    k = k.to(codes.codebook.dtype)
    keys = k.transpose(1, 2).flatten(0, 1) if layout.mask is None else k.transpose(1, 2)[layout.mask]
    indices = torch.randint(keys.shape[0], (codes.codebook.shape[1],), device=k.device)
    if repeated:
        return
    with full_precision(k):
        chosen = nearest_codes(k, codes.codebook, layout)
        count, total = chosen.sum((0, 2)), (chosen.mT @ layout.keep(k)).sum(0)
    fresh = keys[indices].transpose(0, 1).contiguous()
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(count)
        dist.all_reduce(total)
        dist.broadcast(fresh, src=0)
    codes.key_count.lerp_(count, 1 - decay)
    codes.key_sum.lerp_(total, 1 - decay)
    lost = codes.key_count < MIN_KEYS
    codes.key_count.copy_(torch.where(lost, 1.0, codes.key_count))
    codes.key_sum.copy_(torch.where(lost[..., None], fresh, codes.key_sum))


def learning_vq_attention(q: Tensor, k: Tensor, v: Tensor, codes: Codes, layout: Layout, decay: float) -> Tensor:
    """Attend to the codes of earlier calls, then update the codes by the keys."""
    # The recomputation of gradient checkpointing must use the same codes, and not count keys twice.
    learns, repeated = k.shape[0] > 0, in_backward()
    if learns and not repeated:
        refresh(codes)
    # A copy: backward needs the codes as they are now.
    x = vq_attention(q, k, v, codes.codebook.clone()[None], layout)
    if learns:
        observe(codes, k, layout, decay, repeated)
    return x


class VQAttention(SelfAttention):
    """`softmax(Q K^^T / sqrt(d)) V` where K^ has, for each key, the nearest of num_codes code vectors; linear in N.

    num_codes: S, the code vectors of each head.
    decay: of the moving averages of keys, and of their numbers, that give the codes. A code without keys, as all are at
        first, is reset to a key of the batch.

    A training step uses the codes of the steps before it. Codes are buffers, saved with the weights.
    """

    cost: str = "N"
    needs_grid: ClassVar[bool] = False
    no_mask: str = ""
    codebook: Tensor
    key_count: Tensor
    key_sum: Tensor

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_codes: int = 64,
        decay: float = 0.99,
        device=None,
        dtype=None,
        **options: Any,
    ) -> None:
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(dim, num_heads, **dd, **options)
        if num_codes < 1 or not 0 <= decay < 1:
            raise ValueError(
                f"num_codes must be at least 1 and decay from 0 to below 1, got num_codes={num_codes}, decay={decay}."
            )
        self.decay = decay
        self.register_buffer("codebook", torch.empty(num_heads, num_codes, self.head_dim, **dd))
        self.register_buffer("key_count", torch.empty(num_heads, num_codes, **dd))
        self.register_buffer("key_sum", torch.empty(num_heads, num_codes, self.head_dim, **dd))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw random codes, and forget all keys."""
        torch.nn.init.normal_(self.codebook)
        torch.nn.init.zeros_(self.key_count)
        torch.nn.init.zeros_(self.key_sum)

    @property
    def codes(self) -> Codes:
        """Return the buffers."""
        return Codes(self.codebook, self.key_count, self.key_sum)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        if self.training:
            return learning_vq_attention(q, k, v, self.codes, layout, self.decay)
        return vq_attention(q, k, v, self.codebook[None], layout)
