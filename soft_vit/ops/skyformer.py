"""Skyformer: Gaussian attention of queries and keys through landmarks (Chen et al. 2021, arXiv 2111.00035)."""

import torch
from torch import Tensor

from soft_vit.ops.chunked import map_tokens, sum_over_tokens
from soft_vit.ops.gaussian import gaussian_kernel, self_gaussian_kernel
from soft_vit.ops.landmarks import Limit, grid_limit, isolate_missing, landmark_tokens
from soft_vit.ops.layout import Layout, fill_padding
from soft_vit.ops.numerics import at_least, at_least_float32, full_precision
from soft_vit.ops.soft.cholesky import cholesky_solve


def skyformer_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, sr_ratio: int = 1, max_landmarks: Limit = 7, ridge: float = 0.01
) -> Tensor:
    """Attend by `C(Q, S) (C(S, S) + ridge I)^-1 C(S, K)` with `C = exp(-||a - b||^2 / (2 sqrt(D)))`.

    q, k, v: `[B, H, P + N, D]`; sr_ratio, max_landmarks: of `nystrom_attention`. Everything inside is at least fp32.
    """
    limit, sr_ratio = grid_limit("max_landmarks", max_landmarks, layout.sequence), at_least("sr_ratio", sr_ratio)
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
