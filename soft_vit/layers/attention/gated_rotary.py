"""The common part of the attentions of RAVLT and MAViT: rotated queries and keys, a gate, a convolution of values.

Fan et al., arXiv 2411.07635 and 2507.00698.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from soft_vit.layers.attention.base import Attention, Rotate, Traits, add_to_grid, depthwise_conv, grid_maps
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.ops.chunked import map_tokens
from soft_vit.ops.layout import Layout, merge_heads, split_parts
from soft_vit.ops.numerics import at_least_float32
from soft_vit.ops.rotary import rotate_by_position
from soft_vit.ops.softmax import softmax_attention


def gated(x: Tensor, gate: Tensor, width: int) -> Tensor:
    """Return `x * gate` `[B, H, N, D]` in the gate's dtype, for tokens of that width.

    The result is clamped so that a following LayerNorm can square it in fp32; values in trained models are far smaller.
    """
    limit = min(torch.finfo(gate.dtype).max, 1e16 / width)
    return map_tokens(lambda x, gate: (at_least_float32(x) * gate).clamp(-limit, limit).to(gate.dtype), (x, gate))


class GatedRotaryAttention(Attention):
    """`proj((attend(q, k, v) + conv(v)) * o)`: one layer projects tokens to q, k, v and the gate o.

    The convolution is depthwise, 5 x 5.
    """

    traits = Traits("N", "as all tokens, but not rotated and left out of the convolution", mask_refusal=None)
    projections: ClassVar[dict[str, str]] = {"qkvo": "qkvg"}
    attend: Callable[..., Tensor]

    def __init__(self, dim: int, num_heads: int, *, qkv_bias: bool = True, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        dd = device_and_dtype(options)
        self.qkvo = Linear(dim, 4 * dim, bias=qkv_bias, **dd)
        self.lepe = depthwise_conv(dim, 5, self.sequence, **dd)
        self.proj = Linear(dim, dim, **dd)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q, k, v, gate = split_parts(self.qkvo(x), 4, self.num_heads)
        q, k = self.queries(q, layout, rotate), self.keys(k, layout, rotate)
        mixed = add_to_grid(self.attend(q, k, v, layout), self.lepe(grid_maps(v, layout)), layout)
        return self.proj_drop(self.proj(merge_heads(gated(mixed, gate, x.shape[2]))))


class GatedRotarySoftmaxAttention(GatedRotaryAttention):
    """Softmax attention of the last two stages of RAVLT and MAViT."""

    traits = replace(GatedRotaryAttention.traits, cost="N^2")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Attend by a softmax of q and k rotated by position; q, k, v and the result `[B, H, P + N, D]`."""
        q, k = (part.to(v.dtype) for part in rotate_by_position(layout, q, k, end_point=True))
        return softmax_attention(q, k, v, layout, fused=self.fused_attn)
