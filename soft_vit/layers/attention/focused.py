"""Focused linear attention of FLatten transformers (Han et al. 2023, arXiv 2308.00442)."""

from typing import Any

from timm.layers import get_device_dtype
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention, Traits, depthwise_conv
from soft_vit.layers.attention.local_conv import add_to_heads, head_maps
from soft_vit.layers.attention.positional_key import PositionalKeyAttention, unscaled
from soft_vit.ops.focused import FLOOR, focused, focused_attention
from soft_vit.ops.layout import Layout
from soft_vit.ops.linear import linear_attention
from soft_vit.ops.numerics import at_least_float32, full_precision


class FocusedAttention(SelfAttention):
    """`phi(Q) (phi(K)^T V) / (phi(Q) (phi(K)^T 1)) + conv(V)` with focused features phi.

    `phi(x) = |relu(x)| relu(x)^p / |relu(x)^p|`. The depthwise convolution of V gives the matrix full rank.

    power: the focusing factor p; 1 leaves the features as `relu` gives them.

    The convolution is 5 x 5, with one kernel for each channel of a head, which heads share. The released code also
    divides by a learned scale and adds a learned encoding of positions to the keys, as `FlattenAttention` does; the
    paper's formulas do not.
    """

    traits = Traits("N", "as all tokens, but left out of the convolution", mask_refusal=None, takes_context=True)

    def __init__(self, dim: int, num_heads: int, *, power: float = 3.0, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        self.power = power
        self.dwconv = depthwise_conv(self.head_dim, 5, self.sequence, **get_device_dtype(self))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return focused_attention(q, k, v, layout, self.power)

    def add_residual(self, x: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return add_to_heads(x, self.dwconv(head_maps(v, layout)), layout)


class FlattenAttention(PositionalKeyAttention):
    """The focused attention of the released models: features are focused over all channels, before they are heads'.

    Keys have a learned encoding of their position, queries and keys a learned scale for each channel.
    """

    def features(self, x: Tensor) -> Tensor:
        with full_precision(x):
            return focused(unscaled(at_least_float32(x).relu() + FLOOR, self.scale), 3.0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Attend with features q, k `[B, H, N, D]`; rows are divided by their sum plus 1e-6 for each token."""
        return linear_attention(q, k, v, layout, eps=1e-6)
