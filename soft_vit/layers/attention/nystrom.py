"""Nystroemformer: softmax attention through landmarks (Xiong et al. 2021, arXiv 2102.03902)."""

from typing import Any, get_args

from timm.layers import get_device_dtype
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention, Traits
from soft_vit.layers.attention.local_conv import local_conv, local_result
from soft_vit.ops.landmarks import NO_MASK_ON_A_MAP, Landmarks, Limit, grid_limit
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least, check_choice
from soft_vit.ops.nystrom import PseudoInverse, nystrom_attention


class NystromAttention(SelfAttention):
    """`softmax(Q K~^T) softmax(Q~ K~^T)^+ softmax(Q~ K^T) V` through landmarks, plus a depthwise convolution of V.

    sr_ratio: side of the window that one landmark stands for.
    landmarks: `grid` (averages over windows of the map) or `segment` (over runs of tokens, row by row, as published
        for text).
    max_landmarks: the largest grid of landmarks, which makes the cost linear in N. With None, there are
        N / sr_ratio^2 landmarks, and the inverse costs their cube.
    inverse, iters: see `soft_vit.ops.nystrom.nystrom_attention`.
    local_kernel: side of the depthwise convolution, odd, one kernel for each head; 0 for none; by default the next odd
        number above sr_ratio.
    """

    traits = Traits("N", "as all tokens, but left out of the landmarks")

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        landmarks: Landmarks = "grid",
        max_landmarks: Limit = 7,
        inverse: PseudoInverse = "iterative",
        iters: int = 6,
        local_kernel: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, **options)
        self.landmarks = check_choice("landmarks", landmarks, get_args(Landmarks))
        self.limit = grid_limit("max_landmarks", max_landmarks, self.sequence)
        cost = "N" if self.limit else "N^2/r^2 + N^3/r^6"
        self.declare(cost=cost, mask_refusal=None if self.sequence else NO_MASK_ON_A_MAP)
        self.inverse = check_choice("inverse", inverse, get_args(PseudoInverse))
        self.iters = at_least("iters", iters, 0)
        self.local = local_conv(num_heads, local_kernel, self.sr_ratio, self.sequence, **get_device_dtype(self))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        how = self.inverse, self.iters, self.landmarks, self.fused_attn
        return nystrom_attention(q, k, v, layout, self.sr_ratio, self.limit, *how)

    def add_residual(self, x: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return x if self.local is None else x + local_result(v, self.local, layout)
