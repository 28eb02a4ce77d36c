"""Vision test-time training: an inner model that one step trains on the tokens (Han et al. 2025, arXiv 2512.01643)."""

from typing import Any

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, Traits
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.ops.layout import Layout, merge_heads, split_heads, window
from soft_vit.ops.rotary import rotate_by_position
from soft_vit.ops.ttt import conv_branch, gated_branch


class TTTAttention(Attention):
    """`F(Q; W - g / (|g| + 1))`: an inner model F, which a step along g has trained to give the values for the keys.

    g is the gradient of an inner loss of `F(K; W)` and V for the weights W, which are learned. Two inner models side by
    side: a gated unit of every head, and a 3x3 depthwise convolution with one head's width of channels. Time and memory
    are linear in N. No attention matrix exists, as the result is not linear in V.

    rope: rotate queries and keys of the gated unit by position, over all channels before they are split into heads; dim
        is a multiple of 4 then.
    """

    traits = Traits("N", "as all tokens, but left out of the convolution", mask_refusal=None)

    def __init__(self, dim: int, num_heads: int, *, qkv_bias: bool = True, rope: bool = False, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        dd = device_and_dtype(options)
        d = self.head_dim
        if rope and dim % 4:
            raise ValueError(f"dim must be a multiple of 4, for pairs of channels of rows and columns, got {dim}.")
        self.rope = rope
        self.qkv = Linear(dim, 3 * dim + 3 * d, bias=qkv_bias, **dd)
        self.w1, self.w2 = (nn.Parameter(torch.empty(1, num_heads, d, d, **dd)) for _ in range(2))
        self.w3 = nn.Parameter(torch.empty(d, 1, *window(3, self.sequence), **dd))
        self.proj = Linear(dim + d, dim, **dd)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw truncated normal weights (0.02) for the inner models."""
        for w in (self.w1, self.w2, self.w3):
            trunc_normal_(w, std=0.02)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        width, d = self.num_heads * self.head_dim, self.head_dim
        # Not slices, whose gradients are each as large as x.
        *of_heads, q_conv, k_conv, v_conv = self.qkv(x).split([width] * 3 + [d] * 3, dim=-1)
        q, k, v = (split_heads(part, self.num_heads) for part in of_heads)
        q, k = self.queries(q, layout, rotate), self.keys(k, layout, rotate)
        if self.rope:
            q, k = rotate_by_position(layout, merge_heads(q), merge_heads(k))
            q, k = split_heads(q, self.num_heads), split_heads(k, self.num_heads)
        gated = merge_heads(gated_branch(q, k, v, self.w1, self.w2, layout))
        q, k, v = (split_heads(part, d) for part in (q_conv, k_conv, v_conv))
        convolved = merge_heads(conv_branch(q, k, v, self.w3.transpose(0, 1), layout))
        return self.proj_drop(self.proj(torch.cat([gated, convolved], dim=-1)))
