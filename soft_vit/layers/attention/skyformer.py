"""Skyformer: Gaussian attention of queries and keys through landmarks (Chen et al. 2021, arXiv 2111.00035)."""

from typing import Any

import torch
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention, Traits, grid_limit
from soft_vit.layers.attention.landmarks import NO_MASK_ON_A_MAP, isolate_missing, landmark_tokens
from soft_vit.ops import cholesky_solve, gaussian_kernel, self_gaussian_kernel
from soft_vit.ops.chunked import map_tokens, sum_over_tokens
from soft_vit.ops.layout import Layout, fill_padding
from soft_vit.ops.numerics import at_least_float32, full_precision
from soft_vit.ops.soft.options import check_ridge


def skyformer_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, sr_ratio: int, limit: tuple[int, int] | None, ridge: float
) -> Tensor:
    """Attend by `C(Q, S) (C(S, S) + ridge I)^-1 C(S, K)` with `C = exp(-||a - b||^2 / (2 sqrt(D)))`.

    q, k, v: `[B, H, P + N, D]`; sr_ratio, limit: see `landmark_tokens`. Everything inside is at least fp32.
    """
    dtype, scale = v.dtype, q.shape[-1] ** -0.25
    (of_queries, exist), (of_keys, _) = (landmark_tokens(x, layout, sr_ratio, limit) for x in (q, k))
    landmarks = at_least_float32(torch.cat([of_queries, of_keys], dim=2)) * scale
    if exist is not None:
        landmarks = isolate_missing(landmarks, exist.repeat(1, 2))

    def gathered(k: Tensor, v: Tensor, mask: Tensor | None, landmarks: Tensor) -> tuple[Tensor]:
        k, v = fill_padding(at_least_float32(k) * scale, mask), fill_padding(at_least_float32(v), mask)
        return (gaussian_kernel(landmarks, k) @ v,)

    def read(q: Tensor, landmarks: Tensor, summary: Tensor) -> Tensor:
        return (gaussian_kernel(at_least_float32(q) * scale, landmarks) @ summary).to(dtype)

    with full_precision(q):
        (summary,) = sum_over_tokens(gathered, (k, v, layout.token_mask), (landmarks,))
        summary = cholesky_solve(self_gaussian_kernel(landmarks), summary, ridge)
        return map_tokens(read, (q,), (landmarks, summary))


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
        self,
        dim: int,
        num_heads: int,
        *,
        max_landmarks: int | tuple[int, int] | None = 7,
        ridge: float = 0.01,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, **options)
        self.limit = grid_limit("max_landmarks", max_landmarks, self.sequence)
        self.declare(mask_refusal=None if self.sequence else NO_MASK_ON_A_MAP)
        if self.limit is None:
            self.declare(cost="N^2/r^2 + N^3/r^6")
        check_ridge(ridge)
        self.ridge = ridge

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return skyformer_attention(q, k, v, layout, self.sr_ratio, self.limit, self.ridge)
