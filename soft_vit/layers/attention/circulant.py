"""Circulant attention of CA-DeiT (Han et al. 2026, arXiv 2512.21542)."""

from typing import Any

import torch.nn.functional as F
from timm.layers import get_device_dtype
from torch import Tensor

from soft_vit.layers.attention.base import Rotate, SelfAttention, Traits, check_heads
from soft_vit.layers.plain import Linear
from soft_vit.ops.circulant import attend_by_displacement
from soft_vit.ops.layout import Layout


class CirculantAttention(SelfAttention):
    """`sum_d softmax_d(sum_p q[p] k[p + d] / sqrt(N)) v[p + d]`, channel by channel, behind a gate `silu(gate(x))`.

    A weight belongs to a displacement d on the map, and is the same for all places p. Opposite edges of the map meet.

    num_heads must divide the width, and is otherwise ignored: each channel is a head.
    """

    traits = Traits("N log N", "see all tokens, and are not seen by the map", mask_refusal=None, qk="channels")

    def __init__(self, dim: int, num_heads: int, **options: Any) -> None:
        check_heads(dim, num_heads)
        super().__init__(dim, dim, **options)
        self.gate = Linear(dim, dim, **get_device_dtype(self))
        self.projections = {**self.projections, "gate": "g"}  # type: ignore[misc]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return attend_by_displacement(q, k, v, layout, self.fused_attn)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q, k, v, gate = self.project(x)
        x = self.attend(self.queries(q, layout, rotate), self.keys(k, layout, rotate), v, layout)
        return self.output(x * F.silu(gate))
