"""The common part of FLatten and PolaFormer: encoded positions of keys, a learned scale, a convolution of values."""

from collections.abc import MutableMapping
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import get_device_dtype
from torch import Tensor, nn

from soft_vit.layers.attention.base import Rotate, SelfAttention, Traits, depthwise_conv
from soft_vit.layers.attention.local_conv import add_to_heads, head_maps
from soft_vit.layers.embed import grid_of_positions, replace_parameter, resample_pos_embed
from soft_vit.ops.layout import FeatSize, Layout, as_map, merge_heads, split_heads
from soft_vit.ops.numerics import at_least_float32, full_precision

PREFIX = "as all tokens, but without an encoding and left out of the convolution"


def add_positions(k: Tensor, positions: Tensor, grid_size: tuple[int, int], layout: Layout) -> Tensor:
    """Add to keys `[B, P + N, C]` an encoding `[1, n, C]` of the positions of a map, resampled to their map."""
    return k + layout.pad_prefix(resample_pos_embed(positions, grid_size, layout.grid_size, mode="bicubic"))


def unscaled(x: Tensor, scale: Tensor) -> Tensor:
    """Return `x / softplus(scale)`, at least fp32."""
    with full_precision(x):
        return at_least_float32(x) * F.softplus(at_least_float32(scale)).reciprocal()


class PositionalKeyAttention(SelfAttention):
    """An attention whose keys have a learned encoding of their position, which belongs to the map feat_size.

    On another map the encoding is resampled, bicubically. A subclass implements `attend`, and may replace `features`.
    """

    traits = Traits("N", PREFIX, mask_refusal="its encoding of keys belongs to positions", fixed_grid=True)
    qkv: nn.Linear

    def __init__(self, dim: int, num_heads: int, *, feat_size: FeatSize, **options: Any) -> None:
        super().__init__(dim, num_heads, feat_size=feat_size, **options)
        dd = get_device_dtype(self)
        self.feat_size = Y, X = as_map(feat_size)
        self.positional_encoding = nn.Parameter(torch.zeros(1, Y * X, dim, **dd))
        self.scale = nn.Parameter(torch.zeros(1, 1, dim, **dd))
        self.dwc = depthwise_conv(self.head_dim, 5, self.sequence, **dd)

    def reset_parameters(self) -> None:
        """Set the encoding to zero and the scale to ln 2."""
        nn.init.zeros_(self.positional_encoding)
        nn.init.zeros_(self.scale)

    def features(self, x: Tensor) -> Tensor:
        """Map queries or keys `[B, P + N, C]`, before they are split into heads."""
        return unscaled(x, self.scale)

    def values(self, v: Tensor) -> Tensor:
        """Return the values `[B, H, P + N, D]` as `attend` takes them."""
        return v

    def joined(self, x: Tensor) -> Tensor:
        """Return the result of `attend` as `[B, H, P + N, D]`."""
        return x

    def gated(self, mixed: Tensor, x: Tensor) -> Tensor:
        """Gate the mixed tokens `[B, P + N, C]`, on their way to the projection, by the tokens x."""
        return mixed

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        k = add_positions(k, self.positional_encoding, self.feat_size, layout)
        q, k, v = (split_heads(part, self.num_heads) for part in (self.features(q), self.features(k), v))
        if self.qk_conv or not isinstance(self.q_norm, nn.Identity):
            # These take the dtype of their weights.
            q, k = q.to(self.qkv.weight.dtype), k.to(self.qkv.weight.dtype)
        q, k = self.queries(q, layout, rotate), self.keys(k, layout, rotate)
        mixed = self.joined(self.attend(q, k, self.values(v), layout))
        mixed = add_to_heads(mixed, self.dwc(head_maps(v, layout)), layout)
        return self.proj_drop(self.proj(self.gated(merge_heads(mixed), x)))

    def resize(self, feat_size: tuple[int, int]) -> None:
        resampled = resample_pos_embed(self.positional_encoding, self.feat_size, feat_size, mode="bicubic")
        replace_parameter(self, "positional_encoding", resampled)
        self.feat_size = feat_size

    def resample_state(
        self, prefix: str, state_dict: MutableMapping[str, Tensor], feat_size: tuple[int, int] | None = None
    ) -> None:
        name = f"{prefix}positional_encoding"
        if name in state_dict:
            old = grid_of_positions(state_dict[name], self.positional_encoding, feat_size)
            if old is not None:
                state_dict[name] = resample_pos_embed(state_dict[name], old, self.feat_size, mode="bicubic")
