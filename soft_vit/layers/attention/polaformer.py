"""Polarity-aware linear attention of PolaFormer (Meng et al. 2025, arXiv 2501.15061)."""

from typing import Any

import torch
from timm.layers import get_device_dtype
from torch import Tensor, nn

from soft_vit.layers.attention.positional_key import PositionalKeyAttention
from soft_vit.layers.plain import Linear
from soft_vit.ops.layout import Layout
from soft_vit.ops.polaformer import halved, polaformer_attention, unhalved


class PolaFormerAttention(PositionalKeyAttention):
    """`[(Q+ K+^T + Q- K-^T) V1, (Q+ K-^T + Q- K+^T) V2]` over row sums, plus a convolution of V, behind a gate.

    Q+ and Q- are powers of the positive and negative parts, with learned exponents, one for each channel; V1 and V2 are
    the halves of each head.
    Keys have a learned encoding of their position, queries and keys a learned scale for each channel.
    """

    def __init__(self, dim: int, num_heads: int, *, qkv_bias: bool = True, **options: Any) -> None:
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, **options)
        dd = get_device_dtype(self)
        self.g = Linear(dim, dim, bias=qkv_bias, **dd)
        self.projections = {**self.projections, "g": "g"}  # type: ignore[misc]
        self.power = nn.Parameter(torch.zeros(1, num_heads, 1, self.head_dim, **dd))

    def reset_parameters(self) -> None:
        """Set the encoding to zero, the scale to ln 2, and the exponents to 3."""
        super().reset_parameters()
        nn.init.zeros_(self.power)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return polaformer_attention(q, k, v, self.power)

    def values(self, v: Tensor) -> Tensor:
        return halved(v)

    def joined(self, x: Tensor) -> Tensor:
        return unhalved(x, self.head_dim)

    def gated(self, mixed: Tensor, x: Tensor) -> Tensor:
        return mixed * self.g(x)
