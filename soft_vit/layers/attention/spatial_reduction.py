"""Spatial-reduction attention (PVT, arXiv 2102.12122) and its pooled linear form (PVTv2-Li, arXiv 2106.13797)."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, Traits, pad_to_window
from soft_vit.layers.embed import tokens_to_map
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.ops.landmarks import window_averages
from soft_vit.ops.layout import Layout, merge_heads, split_heads, split_parts, window
from soft_vit.ops.softmax import dot_product_attention

POOLED_SIDE = 7


class SpatialReductionAttention(Attention):
    """`softmax(Q K_r^T / sqrt(d)) V_r` with keys K_r and values V_r of a smaller map.

    sr_ratio: side of the window that a strided convolution and LayerNorm reduce to one key and value; with 1 the map
        is not reduced. The cost is `N^2 / sr_ratio^2`.
    linear: instead of the strided convolution, average the map to 7 x 7 for any sr_ratio, then apply a 1x1 convolution,
        LayerNorm and GELU. The cost is linear in N.
    """

    traits = Traits("N^2/r^2", "seen by all tokens, next to the reduced ones", mask_refusal=None, qk="some")
    projections: ClassVar[dict[str, str]] = {"q": "q", "kv": "kv"}

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        linear: bool = False,
        attn_drop: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, sr_ratio=sr_ratio, **options)
        dd = device_and_dtype(options)
        self.linear = linear
        if linear:
            self.declare(cost="N", mask_refusal="its 49 windows divide a full map")
        self.attn_drop = attn_drop
        self.q = Linear(dim, dim, bias=qkv_bias, **dd)
        self.kv = Linear(dim, 2 * dim, bias=qkv_bias, **dd)
        self.window = window(1 if linear else sr_ratio, self.sequence)
        self.sr = nn.Conv2d(dim, dim, self.window, stride=self.window, **dd) if linear or sr_ratio > 1 else None
        self.norm = None if self.sr is None else nn.LayerNorm(dim, eps=1e-5, **dd)
        self.proj = Linear(dim, dim, **dd)

    def reduce(self, x: Tensor, layout: Layout) -> Tensor:
        """Map tokens `[B, P + N, C]` to those that become keys and values, `[B, P + M, C]`."""
        if self.sr is None or self.norm is None:
            return x
        P = layout.num_prefix_tokens
        maps = tokens_to_map(x[:, P:], layout.grid_size)
        # A smaller map is spread over the grid of the linear form, as published.
        maps = window_averages(maps, (POOLED_SIDE,) * 2) if self.linear else pad_to_window(maps, self.window)
        reduced = self.norm(self.sr(maps).flatten(2).mT)
        reduced = F.gelu(reduced) if self.linear else reduced
        return torch.cat([x[:, :P], reduced], dim=1) if P else reduced

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Mix keys and values `[B, heads, P + M, C / heads]` by queries `[B, heads, P + N, C / heads]`.

        Windows with a masked token are left out. An image that is thinner than one window has one, padded with zeros.
        """
        mask = layout.mask
        if mask is not None and self.sr is not None:
            P, (height, width) = layout.num_prefix_tokens, self.window
            maps = pad_to_window(mask[:, P:].unflatten(1, layout.grid_size), self.window)
            # Padding is on the right and below: its first column and row tell how many windows each image has.
            sides = maps[:, height - 1 :: height, 0], maps[:, 0, width - 1 :: width]
            rows, columns = (side | (torch.arange(side.shape[1], device=side.device) == 0) for side in sides)
            mask = torch.cat([mask[:, :P], (rows[:, :, None] & columns[:, None]).flatten(1)], dim=1)
        mask = None if mask is None else mask[:, None, None]
        return dot_product_attention(q, k, v, mask, self.dropout_p, self.fused_attn)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q = self.queries(split_heads(self.q(x), self.num_heads), layout, rotate)
        k, v = split_parts(self.kv(self.reduce(x, layout)), 2, self.num_heads)
        return self.proj_drop(self.proj(merge_heads(self.attend(q, self.keys(k, layout, rotate), v, layout))))
