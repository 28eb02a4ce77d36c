"""Mamba-inspired linear attention (MILA, released as MLLA; Han et al. 2024, arXiv 2405.16605)."""

from typing import Any, ClassVar

from torch import Tensor, nn

from soft_vit.layers.attention.base import (
    Attention,
    Rotate,
    Traits,
    add_to_grid,
    depthwise_conv,
    grid_maps,
    merge_heads,
    split_heads,
    split_parts,
)
from soft_vit.layers.mlp import linear
from soft_vit.ops.chunked import map_tokens, sum_over_tokens
from soft_vit.ops.layout import Layout, fill_padding
from soft_vit.ops.linear import elu_features
from soft_vit.ops.numerics import at_least_float32
from soft_vit.ops.rotary import rotary_tables, rotate

# Added to the normaliser.
FLOOR = 1e-6


class MilaAttention(Attention):
    """`R(q_i) . sum_j R(k_j) v_j^T / (q_i . sum_j k_j)`, plus a 3x3 depthwise convolution of V.

    Queries and keys are features `elu + 1`; R rotates them by position, in the numerator alone. The values are the
    tokens themselves, and the result is not projected: other layers of the family's block do so. The rotation is over
    all channels before they are split into heads, so heads differ in frequencies, and the first half of them sees rows
    alone, the second columns. dim is a multiple of 4.
    """

    traits = Traits("N", "as all tokens, but not rotated and left out of the convolution", mask_refusal=None)
    projections: ClassVar[dict[str, str]] = {"qk": "qk"}

    def __init__(
        self, dim: int, num_heads: int, *, qkv_bias: bool = True, proj_drop: float = 0.0, **options: Any
    ) -> None:
        super().__init__(dim, num_heads, **options)
        dd = self.device_and_dtype(options)
        if dim % 4:
            raise ValueError(f"dim must be a multiple of 4, for pairs of channels of rows and columns, got {dim}.")
        self.qk = nn.Linear(dim, 2 * dim, bias=qkv_bias, **dd)
        self.lepe = depthwise_conv(dim, 3, self.sequence, **dd)
        self.proj_drop = nn.Dropout(proj_drop)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Attend linearly: `R(q_i) sum_j R(k_j) v_j^T / (q_i sum_j k_j)`; rows do not sum to 1.

        q and k are features `elu + 1`, and R rotates by position, over all heads' channels. Everything inside is at
        least fp32.
        """
        dtype, count = v.dtype, layout.num_tokens(q)
        tables = rotary_tables(layout, q, channels=q.shape[1] * q.shape[3])

        def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            return split_heads(rotate(merge_heads(x), cos[:, 0], sin[:, 0]), x.shape[1])

        def state(k: Tensor, v: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
            k, v = fill_padding(elu_features(k), mask), fill_padding(at_least_float32(v), mask)
            return turned(k, cos, sin).mT @ v / count, k.sum(2)[..., None] / count

        def read(q: Tensor, cos: Tensor, sin: Tensor, kv: Tensor, k_mean: Tensor) -> Tensor:
            q = elu_features(q)
            return (turned(q, cos, sin) @ kv * (q @ k_mean + FLOOR).reciprocal()).to(dtype)

        return map_tokens(read, (q, *tables), sum_over_tokens(state, (k, v, layout.token_mask, *tables)))

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q, k = split_parts(linear(x, self.qk), 2, self.num_heads)
        v = split_heads(x, self.num_heads)
        y = self.attend(self.queries(q, layout, rotate), self.keys(k, layout, rotate), v, layout)
        return self.proj_drop(merge_heads(add_to_grid(y, self.lepe(grid_maps(v, layout)), layout)))
