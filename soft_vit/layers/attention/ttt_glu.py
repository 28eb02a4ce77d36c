"""T5: test-time training of a gated unit on the queries, keys and values of a pretrained ViT (arXiv 2605.02772)."""

from typing import Any, ClassVar

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, KeyNorm, Rotate, Traits
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.ops.layout import Layout, merge_heads, split_parts
from soft_vit.ops.ttt import trained_unit


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
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, key_norm=key_norm, qk_conv=qk_conv, **options)
        dd = device_and_dtype(options)
        self.qkv = Linear(dim, 3 * dim, bias=qkv_bias, **dd)
        for name in ("w1", "w2", "w3"):
            setattr(self, name, nn.Parameter(torch.empty(num_heads, self.head_dim, self.head_dim, **dd)))
        self.proj = Linear(dim, dim, **dd)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw truncated normal weights (0.02) for the inner models."""
        for w in (self.w1, self.w2, self.w3):
            trunc_normal_(w, std=0.02)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q, k, v = split_parts(self.qkv(x), 3, self.num_heads)
        q, k = self.queries(q, layout, rotate), self.keys(k, layout, rotate)
        weights: Any = (self.w1, self.w2, self.w3)
        return self.proj_drop(self.proj(merge_heads(trained_unit(q, k, v, weights, layout))))
