"""Mamba-inspired linear attention (MILA, released as MLLA; Han et al. 2024, arXiv 2405.16605)."""

from typing import Any, ClassVar

from torch import Tensor

from soft_vit.layers.attention.base import Attention, Rotate, Traits, add_to_grid, depthwise_conv, grid_maps
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.ops.layout import Layout, merge_heads, split_heads, split_parts
from soft_vit.ops.rotary_linear import mila_attention


class MilaAttention(Attention):
    """`R(q_i) . sum_j R(k_j) v_j^T / (q_i . sum_j k_j)`, plus a 3x3 depthwise convolution of V.

    Queries and keys are features `elu + 1`; R rotates them by position, in the numerator alone. The values are the
    tokens themselves, and the result is not projected: other layers of the family's block do so. The rotation is over
    all channels before they are split into heads, so heads differ in frequencies, and the first half of them sees rows
    alone, the second columns. dim is a multiple of 4.
    """

    traits = Traits("N", "as all tokens, but not rotated and left out of the convolution", mask_refusal=None)
    projections: ClassVar[dict[str, str]] = {"qk": "qk"}

    def __init__(self, dim: int, num_heads: int, *, qkv_bias: bool = True, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        dd = device_and_dtype(options)
        if dim % 4:
            raise ValueError(f"dim must be a multiple of 4, for pairs of channels of rows and columns, got {dim}.")
        self.qk = Linear(dim, 2 * dim, bias=qkv_bias, **dd)
        self.lepe = depthwise_conv(dim, 3, self.sequence, **dd)

    attend = staticmethod(mila_attention)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q, k = split_parts(self.qk(x), 2, self.num_heads)
        v = split_heads(x, self.num_heads)
        y = self.attend(self.queries(q, layout, rotate), self.keys(k, layout, rotate), v, layout)
        return self.proj_drop(merge_heads(add_to_grid(y, self.lepe(grid_maps(v, layout)), layout)))
