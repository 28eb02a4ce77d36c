"""T5: test-time training of a gated unit on the queries, keys and values of a pretrained ViT (arXiv 2605.02772).

Letters: B batch, H heads, P prefix tokens, N tokens, C channels, D channels of a head.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, KeyNorm, Rotate, Traits, merge_heads, split_parts
from soft_vit.ops.chunked import map_tokens, sum_over_tokens
from soft_vit.ops.layout import Layout, fill_padding
from soft_vit.ops.numerics import at_least_float32, full_precision


def trained_unit(q: Tensor, k: Tensor, v: Tensor, weights: tuple[Tensor, Tensor, Tensor], layout: Layout) -> Tensor:
    """Return `f(q)` of `f(x) = (silu(x w1) * (x w2)) w3`, after one gradient step on all pairs (k, v).

    The loss of a head is `-sum(f(k) . v) / (N sqrt(D))`, N being the number of valid tokens, and the rate is 1.
    The gradient is written out, so that training differentiates through the step. q, k, v and the result:
    `[B, H, P + N, D]`, weights `[H, D, D]`. The result has v's dtype; everything inside is at least fp32. It is clamped
    so that H * D of its values have a finite sum, and a LayerNorm can square it: it is a polynomial of q, k, v.
    """
    dtype, scale = v.dtype, -(v.shape[-1] ** -0.5) / layout.num_tokens(v)
    limit = min(torch.finfo(dtype).max, 1e16) / (v.shape[1] * v.shape[3])
    shared = tuple(at_least_float32(w)[None] for w in weights)

    def gradients(k: Tensor, v: Tensor, mask: Tensor | None, w1: Tensor, w2: Tensor, w3: Tensor) -> tuple[Tensor, ...]:
        k, error = fill_padding(at_least_float32(k), mask), fill_padding(at_least_float32(v), mask) * scale
        z1, z2, back = k @ w1, k @ w2, error @ w3.mT
        s = z1.sigmoid()
        of_z1, of_z2 = back * z2 * s * (1 + z1 * (1 - s)), back * z1 * s
        return k.mT @ of_z1, k.mT @ of_z2, (z1 * s * z2).mT @ error

    def read(q: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
        q = at_least_float32(q)
        return (F.silu(q @ w1) * (q @ w2) @ w3).clamp(-limit, limit).to(dtype)

    with full_precision(v):
        found = sum_over_tokens(gradients, (k, v, layout.token_mask), shared)
        return map_tokens(read, (q,), tuple(w - gradient for w, gradient in zip(shared, found, strict=True)))


class TTTGLUAttention(Attention):
    """`f(Q; W - g)` of a gated unit f, where g is the gradient of an inner loss on keys and values.

    `f(x) = (silu(x W1) * (x W2)) W3` for each head, and the loss is `-sum(f(K) . V) / (N sqrt(d))`: one step trains f
    to give the values for the keys, in time and memory linear in N. No attention matrix exists, as the result is not
    linear in V. It takes over the projections of a pretrained ViT.
    """

    traits = Traits("N", "as all tokens, but left out of the convolution", mask_refusal=None)
    projections: ClassVar[dict[str, str]] = {"qkv": "qkv"}

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        key_norm: KeyNorm | None = "instance",
        qk_conv: bool = True,
        proj_drop: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, key_norm=key_norm, qk_conv=qk_conv, **options)
        dd = self.device_and_dtype(options)
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias, **dd)
        for name in ("w1", "w2", "w3"):
            setattr(self, name, nn.Parameter(torch.empty(num_heads, self.head_dim, self.head_dim, **dd)))
        self.proj = nn.Linear(dim, dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw truncated normal weights (0.02) for the inner models."""
        for w in (self.w1, self.w2, self.w3):
            trunc_normal_(w, std=0.02)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q, k, v = split_parts(self.qkv(x), 3, self.num_heads)
        q, k = self.queries(q, layout, rotate), self.keys(k, layout, rotate)
        weights: Any = (self.w1, self.w2, self.w3)
        y = trained_unit(q, k, v, weights, layout)
        return self.proj_drop(self.proj(merge_heads(y)))
