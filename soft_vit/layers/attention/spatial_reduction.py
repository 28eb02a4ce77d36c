"""Spatial-reduction attention (PVT, arXiv 2102.12122) and its pooled linear form (PVTv2-Li, arXiv 2106.13797)."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, Rotate, merge_heads, split_heads, split_parts, window
from soft_vit.layers.attention.landmarks import window_averages
from soft_vit.ops.layout import Layout
from soft_vit.ops.softmax import dot_product_attention

POOLED_SIDE = 7


def reduce_by_conv(x: Tensor, conv: nn.Module, size: tuple[int, int], feat_size: tuple[int, int]) -> Tensor:
    """Reduce tokens `[B, N, C]` by a convolution whose kernel and stride are `size`, as tokens `[B, M, C]`.

    A remainder of the map that fills no window is dropped, as published; a map smaller than one window is padded with
    zeros to one.
    """
    x = x.mT.unflatten(2, feat_size)
    if feat_size[0] < size[0] or feat_size[1] < size[1]:
        x = F.pad(x, (0, max(0, size[1] - feat_size[1]), 0, max(0, size[0] - feat_size[0])))
    return conv(x).flatten(2).mT


def reduce_by_pooling(x: Tensor, conv: nn.Module, feat_size: tuple[int, int]) -> Tensor:
    """Average tokens `[B, N, C]` on a grid of 7 x 7, then apply a 1x1 convolution: `[B, 49, C]`.

    A smaller map is spread over the grid, as published.
    """
    return conv(window_averages(x.mT.unflatten(2, feat_size), (POOLED_SIDE, POOLED_SIDE))).flatten(2).mT


def tokens_on_map(x: Tensor, layout: Layout) -> Tensor:
    """Return the tokens of `[B, P + N, C]` that lie on the map, zero where they do not count: `[B, N, C]`."""
    x = x[:, layout.num_prefix_tokens :] if layout.num_prefix_tokens else x
    return x if layout.grid_mask is None else x.masked_fill(~layout.grid_mask[..., None], 0)


def behind_prefix(reduced: Tensor, x: Tensor, layout: Layout) -> Tensor:
    """Put reduced tokens `[B, M, C]` behind the prefix tokens among x `[B, P + N, C]`: `[B, P + M, C]`."""
    P = layout.num_prefix_tokens
    return torch.cat([x[:, :P], reduced], dim=1) if P else reduced


def reduced_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, size: tuple[int, int], dropout_p: float, fused: bool
) -> Tensor:
    """Attend from tokens `[B, H, P + N, D]` to prefix and reduced tokens `[B, H, P + M, D]`.

    Windows with a masked token are left out; where all would be, the first one, padded with zeros, stays.
    """
    mask = layout.mask
    if mask is not None and size != (1, 1):
        P, windows = layout.num_prefix_tokens, mask[:, layout.num_prefix_tokens :].unflatten(1, layout.feat_size)
        below, right = (-length % side for length, side in zip(layout.feat_size, size, strict=True))
        windows = F.pad(windows, (0, right, 0, below), value=False)
        whole = windows.unflatten(2, (-1, size[1])).unflatten(1, (-1, size[0])).all(4).all(2)
        whole = whole[:, : max(1, layout.feat_size[0] // size[0]), : max(1, layout.feat_size[1] // size[1])].flatten(1)
        first = torch.arange(whole.shape[1], device=whole.device) == 0
        whole = whole | (first & ~whole.any(1, keepdim=True))
        mask = torch.cat([mask[:, :P], whole], dim=1)
    return dot_product_attention(q, k, v, None if mask is None else mask[:, None, None], dropout_p, fused)


class SpatialReductionAttention(Attention):
    """`softmax(Q K_r^T / sqrt(d)) V_r` with keys K_r and values V_r of a smaller map.

    sr_ratio: side of the window that a strided convolution and LayerNorm reduce to one key and value; with 1 the map
        is not reduced. The cost is `N^2 / sr_ratio^2`.
    linear: instead of the strided convolution, average the map to 7 x 7 for any sr_ratio, then apply a 1x1 convolution,
        LayerNorm and GELU. The cost is linear in N.
    """

    cost: str = "N^2/r^2"
    qk_of_each_token: ClassVar[bool] = False
    prefix: ClassVar[str] = "seen by all tokens, next to the reduced ones"
    no_mask: str = ""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        linear: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
        **options: Any,
    ) -> None:
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(dim, num_heads, sr_ratio=sr_ratio, **dd, **options)
        self.linear = linear
        if linear:
            self.cost = "N"
            self.no_mask = "its 49 windows divide a full map"
        self.attn_drop = attn_drop
        self.q = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.kv = nn.Linear(dim, 2 * dim, bias=qkv_bias, **dd)
        self.window = window(1 if linear else sr_ratio, self.sequence)
        self.sr = nn.Conv2d(dim, dim, self.window, stride=self.window, **dd) if linear or sr_ratio > 1 else None
        self.norm = None if self.sr is None else nn.LayerNorm(dim, eps=1e-5, **dd)
        self.proj = nn.Linear(dim, dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop)

    def reduce(self, x: Tensor, layout: Layout) -> Tensor:
        """Map tokens `[B, P + N, C]` to those that become keys and values, `[B, P + M, C]`."""
        if self.sr is None or self.norm is None:
            return x
        grid = tokens_on_map(x, layout)
        if self.linear:
            reduced = F.gelu(self.norm(reduce_by_pooling(grid, self.sr, layout.feat_size)))
        else:
            reduced = self.norm(reduce_by_conv(grid, self.sr, self.window, layout.feat_size))
        return behind_prefix(reduced, x, layout)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Mix keys and values `[B, heads, P + M, C / heads]` by queries `[B, heads, P + N, C / heads]`."""
        return reduced_attention(q, k, v, layout, self.window, self.dropout_p, self.fused_attn)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q = self.queries(split_heads(self.q(x), self.num_heads), rotate)
        k, v = split_parts(self.kv(self.reduce(x, layout)), 2, self.num_heads)
        return self.proj_drop(self.proj(merge_heads(self.attend(q, self.keys(k, rotate), v, layout))))
