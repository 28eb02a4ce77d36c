"""Mamba-inspired linear attention (MILA, released as MLLA; Han et al. 2024, arXiv 2405.16605)."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention, check_heads, merge_heads, split_heads, split_parts, window
from soft_vit.layers.attention.local_conv import add_to_grid, grid_maps
from soft_vit.ops.layout import FeatSize, Layout
from soft_vit.ops.linear import elu_features
from soft_vit.ops.numerics import at_least_float32, full_precision
from soft_vit.ops.rotary import rotate_by_place

# Added to the normaliser.
FLOOR = 1e-6


def rotated_linear_attention(
    q: Tensor, k: Tensor, q_rotated: Tensor, k_rotated: Tensor, v: Tensor, layout: Layout
) -> Tensor:
    """`q~_i sum_j k~_j v_j^T / (q_i sum_j k_j)` with rotated q~ and k~; rows do not sum to 1 and may be negative.

    Features `[B, H, N, M]`, at least fp32, and v `[B, H, N, D]`. The result has v's shape and dtype.
    """
    with full_precision(q):
        dtype, v = v.dtype, layout.keep(at_least_float32(v))
        k, k_rotated, count = layout.keep(k), layout.keep(k_rotated), layout.num_tokens(k)
        normalizer = q @ (k.sum(2, keepdim=True) / count).mT + FLOOR
        return (q_rotated @ (k_rotated.mT @ (v / count)) / normalizer).to(dtype)


# Leaves of symbolic tracing: they look at sizes and dtypes.
torch.fx.wrap("add_to_grid")
torch.fx.wrap("elu_features")
torch.fx.wrap("grid_maps")
torch.fx.wrap("rotate_by_place")
torch.fx.wrap("rotated_linear_attention")


class MilaAttention(Attention):
    """`R(q_i) . sum_j R(k_j) v_j^T / (q_i . sum_j k_j)`, plus a 3x3 depthwise convolution of V.

    Queries and keys are features `elu + 1`; R rotates them by place, in the numerator alone. The values are the tokens
    themselves, and nothing projects the result: in the family's block (`soft_vit.models.mila`) other layers do. The
    rotation is over all channels before they are split into heads, so heads differ in frequencies, and the first half
    of them sees rows alone, the second columns. dim is a multiple of 4.
    """

    cost: str = "N"
    prefix: ClassVar[str] = "as all tokens, save that they are not rotated and the convolution leaves them out"
    no_mask: str = ""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: FeatSize | None = None,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__(feat_size)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.head_dim = check_heads(dim, num_heads)
        if dim % 4:
            raise ValueError(f"A width of {dim} has no pairs of channels for rows and columns; use a multiple of 4.")
        size = window(3, self.sequence)
        self.qk = nn.Linear(dim, 2 * dim, bias=qkv_bias, **dd)
        self.lepe = nn.Conv2d(dim, dim, size, padding=(1, size[1] // 2), groups=dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop)

    def attend(self, q: Tensor, k: Tensor, q_rotated: Tensor, k_rotated: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Features and values `[B, heads, P + N, C / heads]` to the values' shape; see `rotated_linear_attention`."""
        return rotated_linear_attention(q, k, q_rotated, k_rotated, v, layout)

    def forward(
        self, x: Tensor, feat_size: FeatSize, num_prefix_tokens: int = 0, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        layout = self.layout(x, feat_size, num_prefix_tokens, key_padding_mask)
        q, k = split_parts(self.qk(x), 2, self.num_heads)
        q, k = elu_features(self.q_norm(q)), elu_features(self.k_norm(k))
        q_rotated, k_rotated = rotate_by_place(layout, merge_heads(q), merge_heads(k))
        q_rotated, k_rotated = split_heads(q_rotated, self.num_heads), split_heads(k_rotated, self.num_heads)
        v = split_heads(x, self.num_heads)
        y = self.attend(q, k, q_rotated, k_rotated, v, layout)
        return self.proj_drop(merge_heads(add_to_grid(y, self.lepe(grid_maps(v, layout)), layout, self.num_heads)))
