"""Transformer-VQ: keys replaced by their nearest code vector (Lingle 2023, arXiv 2309.16354).

Letters: B batch, H heads, N tokens, D channels of a head, S codes of a head.
"""

from typing import Any

import torch
import torch.distributed as dist
from timm.layers import get_device_dtype
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention, Traits
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least, at_least_float32, full_precision, in_backward
from soft_vit.ops.vq import nearest_codes, vq_attention

# A code with fewer keys than this in its moving average is reset to a key of the batch.
MIN_KEYS = 1e-2


class VQAttention(SelfAttention):
    """`softmax(Q K^^T / sqrt(d)) V` where K^ has, for each key, the nearest of num_codes code vectors; linear in N.

    num_codes: S, the code vectors of each head.
    decay: of the moving averages of keys, and of their numbers, that give the codes. A code without keys, as all are at
        first, is reset to a key of the batch.

    A training step uses the codes of the steps before it. Codes are buffers, saved with the weights.
    """

    traits = Traits("N", mask_refusal=None, needs_grid=False)
    codebook: Tensor
    key_count: Tensor
    key_sum: Tensor
    drawn: Tensor

    def __init__(self, dim: int, num_heads: int, *, num_codes: int = 64, decay: float = 0.99, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be from 0 to below 1, got decay={decay}.")
        self.decay = decay
        shape, dd = (num_heads, at_least("num_codes", num_codes)), get_device_dtype(self)
        self.register_buffer("codebook", torch.empty(*shape, self.head_dim, **dd))
        # Moving averages over keys: how many each code is nearest to, and their sum.
        self.register_buffer("key_count", torch.empty(shape, **dd))
        self.register_buffer("key_sum", torch.empty(*shape, self.head_dim, **dd))
        # Random indices of the last step.
        self.register_buffer("drawn", torch.full(shape[1:], -1, device=dd["device"]), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw random codes, and forget all keys."""
        torch.nn.init.normal_(self.codebook)
        torch.nn.init.zeros_(self.key_count)
        torch.nn.init.zeros_(self.key_sum)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        if not self.training or not k.shape[0]:
            return vq_attention(q, k, v, self.codebook[None], layout)
        observed = k.detach().to(self.codebook.dtype)
        of_tokens = observed.transpose(1, 2)
        keys = of_tokens.flatten(0, 1) if layout.mask is None else of_tokens[layout.mask]
        indices = torch.randint(len(keys), self.drawn.shape, device=k.device)
        if in_backward():
            if not torch.equal(indices, self.drawn):
                raise ValueError("Checkpointed vq must restore random numbers, and have a backward after each forward.")
            return vq_attention(q, k, v, self.codebook[None], layout)
        self.refresh(indices)
        # A copy: backward needs the codes as they are now.
        x = vq_attention(q, k, v, self.codebook.clone()[None], layout)
        self.observe(observed, keys[indices].transpose(0, 1).contiguous(), layout)
        return x

    @torch.no_grad()
    def refresh(self, indices: Tensor) -> None:
        """Set the codes to the averages of the keys observed so far.

        The recomputation of gradient checkpointing draws the same indices as its forward. Where that is compiled, it
        uses the codes as they are.
        """
        changed = self.key_count > 0
        if torch.compiler.is_compiling():
            changed = changed & (indices != self.drawn).any()
        self.drawn.copy_(indices)
        mean = self.key_sum / self.key_count.clamp(min=MIN_KEYS)[..., None]
        self.codebook.copy_(torch.where(changed[..., None], mean, self.codebook))

    @torch.no_grad()
    def observe(self, k: Tensor, fresh: Tensor, layout: Layout) -> None:
        """Add the keys k `[B, H, N, D]`, of all processes, to the averages for the codes that they are nearest to.

        fresh: `[H, S, D]`, the keys that codes without any are reset to.
        """
        with full_precision(k):
            chosen = nearest_codes(at_least_float32(k), at_least_float32(self.codebook), layout).to(k.dtype)
            count, total = chosen.sum((0, 2)), (chosen.mT @ layout.zero_padded(k)).sum(0)
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(count)
            dist.all_reduce(total)
            dist.broadcast(fresh, src=0)
        self.key_count.lerp_(count, 1 - self.decay)
        self.key_sum.lerp_(total, 1 - self.decay)
        lost = self.key_count < MIN_KEYS
        self.key_count.copy_(torch.where(lost, 1.0, self.key_count))
        self.key_sum.copy_(torch.where(lost[..., None], fresh, self.key_sum))
