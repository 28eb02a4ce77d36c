"""Skyformer: Gaussian attention of queries and keys through landmarks (Chen et al. 2021, arXiv 2111.00035)."""

from typing import Any

from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention, Traits
from soft_vit.ops.landmarks import NO_MASK_ON_A_MAP, Limit, grid_limit
from soft_vit.ops.layout import Layout
from soft_vit.ops.skyformer import skyformer_attention
from soft_vit.ops.soft.options import check_ridge


class SkyformerAttention(SelfAttention):
    """`C(Q, S) (C(S, S) + ridge I)^-1 C(S, K) V` with a Gaussian kernel C, through landmarks S of queries and keys.

    Landmarks are averages of queries and of keys over windows of the map, as many of each. The paper samples them, and
    iterates towards the inverse that is solved for here. SOFT has one projection for queries and keys, and with it a
    symmetric matrix.

    sr_ratio: side of the window that two landmarks stand for.
    max_landmarks: the largest grid of windows, which makes the cost linear in N; None for one that grows with the map.
    ridge: added to the diagonal before the solve, positive.
    """

    traits = Traits("N", "as all tokens, but left out of the landmarks")

    def __init__(
        self, dim: int, num_heads: int, *, max_landmarks: Limit = 7, ridge: float = 0.01, **options: Any
    ) -> None:
        super().__init__(dim, num_heads, **options)
        self.limit = grid_limit("max_landmarks", max_landmarks, self.sequence)
        cost = "N" if self.limit else "N^2/r^2 + N^3/r^6"
        self.declare(cost=cost, mask_refusal=None if self.sequence else NO_MASK_ON_A_MAP)
        check_ridge(ridge)
        self.ridge = ridge

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return skyformer_attention(q, k, v, layout, self.sr_ratio, self.limit, self.ridge)
