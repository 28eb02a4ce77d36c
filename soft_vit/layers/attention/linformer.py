"""Linformer: keys and values projected along the tokens (Wang et al. 2020, arXiv 2006.04768)."""

from collections.abc import Sequence
from typing import Any

import torch
from timm.layers import get_device_dtype
from torch import Tensor, nn

from soft_vit.layers.attention.base import ScoreAttention, Traits
from soft_vit.layers.embed import interpolate_maps
from soft_vit.ops.layout import FeatSize, Layout, as_map
from soft_vit.ops.numerics import at_least, at_least_float32
from soft_vit.ops.sizes import same_size
from soft_vit.ops.softmax import dot_product_attention

NO_MASK = "its learned projections belong to positions"


def resample_projection(weight: Tensor, feat_size: Sequence[int]) -> Tensor:
    """Resample projections `[1, K, H, W]` of one map to another, `[1, K, H', W']`.

    Bilinear (align_corners=False), then every row is scaled by the ratio of the token counts and shifted to its old
    sum: a constant map keeps its projection, however small the sum is. On the map itself the weight is returned
    unchanged.
    """
    old, new = tuple(weight.shape[-2:]), tuple(feat_size)
    if same_size(old, new):
        return weight
    full = at_least_float32(weight)
    resampled = interpolate_maps(full, new) * ((old[0] * old[1]) / (new[0] * new[1]))
    missing = full.sum((-2, -1), keepdim=True) - resampled.sum((-2, -1), keepdim=True)
    return (resampled + missing / (new[0] * new[1])).to(weight.dtype)


def project_tokens(x: Tensor, weight: Tensor, layout: Layout) -> Tensor:
    """Project tokens `[B, heads, P + N, D]` to `[B, heads, P + K, D]` by `[1, K, H, W]`, resampled to their map.

    Prefix tokens stay as they are.
    """
    projected = resample_projection(weight, layout.grid_size).flatten(2) @ layout.grid(x)
    P = layout.num_prefix_tokens
    return torch.cat([x[:, :, :P], projected], dim=2) if P else projected


class LinformerProjection(nn.Module):
    """The K x N matrices E and F, shared by all heads, each kept as K maps so that it can be resampled."""

    def __init__(self, feat_size: tuple[int, int], proj_k: int, **dd: Any) -> None:
        super().__init__()
        shape = (1, at_least("proj_k", proj_k), *feat_size)
        self.weight_k, self.weight_v = (nn.Parameter(torch.empty(shape, **dd)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw normal entries of variance 1 / N, with which projected keys are as long as keys."""
        for weight in self.parameters():
            nn.init.normal_(weight, std=(weight.shape[-2] * weight.shape[-1]) ** -0.5)

    def forward(self, k: Tensor, v: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Project keys and values `[B, heads, P + N, D]` to `[B, heads, P + K, D]`."""
        return project_tokens(k, self.weight_k, layout), project_tokens(v, self.weight_v, layout)


class LinformerAttention(ScoreAttention):
    """`softmax(Q (E K)^T / sqrt(d)) F V` with learned K x N matrices E and F; linear in N.

    The matrices belong to the map feat_size; on another map they are resampled.

    proj_k: K, the number of projected tokens, the same on every map, so that weights of one map fit another.
    """

    traits = Traits("N", "seen by all tokens, next to the projected ones", mask_refusal=NO_MASK, fixed_grid=True)
    resamplers = dict.fromkeys(("projection.weight_k", "projection.weight_v"), resample_projection)

    def __init__(self, dim: int, num_heads: int, *, feat_size: FeatSize, proj_k: int = 49, **options: Any) -> None:
        super().__init__(dim, num_heads, feat_size=feat_size, **options)
        self.projection = LinformerProjection(as_map(feat_size), proj_k, **get_device_dtype(self))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        k, v = self.projection(k, v, layout)
        return dot_product_attention(q, k, v, dropout_p=self.dropout_p, fused=self.fused_attn)
