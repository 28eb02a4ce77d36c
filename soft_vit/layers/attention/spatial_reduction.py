"""Spatial-reduction attention (PVT, arXiv 2102.12122) and its pooled linear form (PVTv2-Li, arXiv 2106.13797)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, check_heads, merge_heads, split_heads, split_parts
from soft_vit.layers.attention.landmarks import window_averages
from soft_vit.ops.softmax import dot_product_attention

POOLED_SIDE = 7


def reduce_by_conv(x: Tensor, conv: nn.Module, side: int, feat_size: tuple[int, int]) -> Tensor:
    """Tokens `[B, N, C]` through a convolution whose kernel and stride are `side`, as tokens `[B, M, C]`.

    A remainder of the map that fills no window is dropped, as published; a map smaller than one window is padded with
    zeros to one.
    """
    x = x.mT.unflatten(2, feat_size)
    if feat_size[0] < side or feat_size[1] < side:
        x = F.pad(x, (0, max(0, side - feat_size[1]), 0, max(0, side - feat_size[0])))
    return conv(x).flatten(2).mT


def reduce_by_pooling(x: Tensor, conv: nn.Module, feat_size: tuple[int, int]) -> Tensor:
    """Tokens `[B, N, C]` averaged on a grid of 7 x 7, then through a 1x1 convolution: `[B, 49, C]`.

    A smaller map is spread over the grid, as published.
    """
    return conv(window_averages(x.mT.unflatten(2, feat_size), (POOLED_SIDE, POOLED_SIDE))).flatten(2).mT


# Leaves of symbolic tracing: they look at sizes.
torch.fx.wrap("reduce_by_conv")
torch.fx.wrap("reduce_by_pooling")


class SpatialReductionAttention(Attention):
    """Softmax attention whose keys and values come from a smaller map.

    sr_ratio: side of the window that a strided convolution, followed by LayerNorm, makes one key and value of; with 1
        the map is used as it is. The cost is `N^2 / sr_ratio^2`.
    linear: instead of the strided convolution, average the map to 7 x 7 whatever sr_ratio is; then a 1x1 convolution,
        LayerNorm and GELU. The cost is linear in N.
    """

    cost: str = "N^2/r^2"

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: tuple[int, int],
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        linear: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.head_dim = check_heads(dim, num_heads)
        self.linear = linear
        if linear:
            self.cost = "N"
        self.attn_drop = attn_drop
        self.q = nn.Linear(dim, dim, bias=qkv_bias, **dd)
        self.kv = nn.Linear(dim, 2 * dim, bias=qkv_bias, **dd)
        self.side = 1 if linear else sr_ratio
        self.sr = nn.Conv2d(dim, dim, self.side, stride=self.side, **dd) if linear or sr_ratio > 1 else None
        self.norm = None if self.sr is None else nn.LayerNorm(dim, eps=1e-5, **dd)
        self.proj = nn.Linear(dim, dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop)

    def reduce(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        """Tokens `[B, N, C]` to those that become keys and values, `[B, M, C]`."""
        if self.sr is None or self.norm is None:
            return x
        if self.linear:
            return F.gelu(self.norm(reduce_by_pooling(x, self.sr, feat_size)))
        return self.norm(reduce_by_conv(x, self.sr, self.side, feat_size))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Queries `[B, heads, N, C / heads]`, keys and values `[B, heads, M, C / heads]` to the queries' shape."""
        return dot_product_attention(q, k, v, dropout_p=self.dropout_p, fused=self.fused_attn)

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        q = split_heads(self.q(x), self.num_heads)
        k, v = split_parts(self.kv(self.reduce(x, feat_size)), 2, self.num_heads)
        return self.proj_drop(self.proj(merge_heads(self.attend(q, k, v))))
