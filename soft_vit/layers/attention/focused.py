"""Focused linear attention of FLatten transformers (Han et al. 2023, arXiv 2308.00442)."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention
from soft_vit.layers.attention.local_conv import depthwise_conv
from soft_vit.ops.layout import FeatSize, Layout
from soft_vit.ops.linear import linear_attention
from soft_vit.ops.numerics import at_least_float32, full_precision

# Keeps a vector without a positive feature from having no direction.
FLOOR = 1e-6


def focused_features(x: Tensor, power: float) -> Tensor:
    """`f^p` at the length of f, for `f = relu(x)`: its direction moves towards its largest features.

    x and the result: `[..., D]`, the result at least fp32.
    """
    x = at_least_float32(x).relu() + FLOOR
    # The length of what is raised cancels; so scaled, its power neither overflows nor vanishes.
    raised = (x / x.detach().amax(-1, keepdim=True)) ** power
    return raised * (x.norm(dim=-1, keepdim=True) / raised.norm(dim=-1, keepdim=True))


def focused_attention(q: Tensor, k: Tensor, v: Tensor, power: float, layout: Layout) -> Tensor:
    """Linear attention with focused features of q, k `[B, H, N, D]`; v and the result `[B, H, N, D]` of one dtype."""
    with full_precision(q):
        return linear_attention(focused_features(q, power), focused_features(k, power), v, layout)


def value_maps(v: Tensor, layout: Layout) -> Tensor:
    """Values `[B, H, P + N, D]` as a map of each head, `[B * H, D, Y, X]`, zero where a token does not count."""
    return layout.grid(layout.keep(v)).flatten(0, 1).mT.unflatten(2, layout.feat_size)


def add_value_maps(x: Tensor, maps: Tensor, layout: Layout) -> Tensor:
    """Tokens `[B, H, P + N, D]` plus maps `[B * H, D, Y, X]`; prefix tokens stay as they are."""
    local = maps.flatten(2).mT.unflatten(0, x.shape[:2])
    return x + F.pad(local, (0, 0, layout.num_prefix_tokens, 0)) if layout.num_prefix_tokens else x + local


# Leaves of symbolic tracing: they look at sizes and dtypes.
torch.fx.wrap("add_value_maps")
torch.fx.wrap("focused_attention")
torch.fx.wrap("value_maps")


class FocusedAttention(SelfAttention):
    """Linear attention with focused features, plus a depthwise convolution of V that gives its matrix full rank.

    power: the focusing factor p; 1 leaves the features as `relu` gives them.
    local_kernel: side of the convolution, odd, with one kernel for each channel of a head, which heads share; 0 for
        none.

    The released code also divides by a learned scale and adds a table of positions to the keys; the formulas of the
    paper, and this, have neither.
    """

    cost: str = "N"
    prefix: ClassVar[str] = "as all tokens, save that the convolution leaves them out"
    no_mask: str = ""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: FeatSize,
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        power: float = 3.0,
        local_kernel: int = 5,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__(
            dim, num_heads, feat_size=feat_size, qkv_bias=qkv_bias, proj_drop=proj_drop, device=device, dtype=dtype
        )
        if power <= 0:
            raise ValueError(f"power={power} does not focus; use a positive number, such as 3.")
        self.power = power
        self.dwconv = depthwise_conv(self.head_dim, local_kernel, self.sequence, device=device, dtype=dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return focused_attention(q, k, v, self.power, layout)

    def add_residual(self, x: Tensor, v: Tensor, layout: Layout) -> Tensor:
        if self.dwconv is None:
            return x
        return add_value_maps(x, self.dwconv(value_maps(v, layout)), layout)
