"""Softmax attention through landmarks (Nystroemformer, Xiong et al. 2021, arXiv 2102.03902).

`softmax(Q K~^T) A^+ softmax(Q~ K^T) V` with `A = softmax(Q~ K~^T)`, M landmarks Q~ and K~, all products divided by
sqrt(D).

Letters: B batch, H heads, N tokens, M landmarks, D channels of a head.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from soft_vit.ops.chunked import by_heads
from soft_vit.ops.landmarks import Landmarks, Limit, grid_limit, landmark_tokens
from soft_vit.ops.layout import WHOLE, Layout
from soft_vit.ops.numerics import at_least, at_least_float32, check_choice, full_precision
from soft_vit.ops.softmax import dot_product_attention

PseudoInverse = Literal["iterative", "exact"]


def iterative_pseudo_inverse(a: Tensor, iters: int = 6) -> Tensor:
    """Return the iterate of `Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4`, towards the pseudo-inverse (Eq. 11).

    a: `[..., M, M]`; the result has its shape, at least fp32, and the true gradient of the steps. Each matrix starts at
    its own `A^T / (max column sum * max row sum)` of |A|. A step cubes the error once it is below one. Until then a
    small singular value s of A gives A Z a value that grows by 13 / 4 a step: if `s^2` is below about
    `(max column sum * max row sum) (13 / 4)^-iters`, s stays damped instead of inverted.
    """
    with full_precision(a):
        shape, a = a.shape, at_least_float32(a).reshape(-1, *a.shape[-2:])
        magnitude = a.abs()
        largest = magnitude.sum(2).amax(1) * magnitude.sum(1).amax(1)
        z = a.mT / largest[:, None, None]
        identity = torch.eye(a.shape[2], dtype=a.dtype, device=a.device)
        seven, fifteen, quarter_of_13 = (x * identity for x in (7, 15, 3.25))
        for _ in range(iters):
            az = torch.bmm(a, z)
            factor = torch.baddbmm(fifteen, az, az - seven)
            z = torch.bmm(z, torch.baddbmm(quarter_of_13, az, factor, alpha=-0.25))
        return z.reshape(shape)


def attention_through_landmarks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_landmarks: Tensor,
    k_landmarks: Tensor,
    exist: Tensor | None = None,
    layout: Layout = WHOLE,
    inverse: PseudoInverse = "iterative",
    iters: int = 6,
    fused: bool = True,
) -> Tensor:
    """Return softmax attention through landmarks, linear in N.

    q, k, v: `[B, H, N, D]`; q_landmarks, k_landmarks: `[B, H, M, D]`. The result has v's shape and dtype; the M x M
    matrix and its inverse are at least fp32.
    exist: bool `[B, M]`, which landmarks exist; None if all do. layout: of the keys.
    inverse, iters, fused: see `nystrom_attention`.
    """
    check_choice("inverse", inverse, get_args(PseudoInverse))
    landmark_mask = None if exist is None else exist[:, None, None]
    summary = dot_product_attention(q_landmarks.to(v.dtype), k, v, layout.key_mask, fused=fused)
    with full_precision(q):
        q_landmarks, k_landmarks = at_least_float32(q_landmarks), at_least_float32(k_landmarks)
        scores = q_landmarks @ k_landmarks.mT * q.shape[-1] ** -0.5
        if landmark_mask is None:
            a = torch.softmax(scores, dim=-1)
        else:
            # Rows of the identity for landmarks that do not exist: the inverse of the others stays the same.
            eye = torch.eye(scores.shape[-1], dtype=scores.dtype, device=scores.device)
            a = torch.softmax(scores.masked_fill(~landmark_mask, -torch.inf), dim=-1)
            a = torch.where(landmark_mask.mT, a, eye)
        z = torch.linalg.pinv(a) if inverse == "exact" else iterative_pseudo_inverse(a, iters)
        summary = (z @ at_least_float32(summary)).to(v.dtype)
    return dot_product_attention(q, k_landmarks.to(v.dtype), summary, landmark_mask, fused=fused)


@by_heads
def nystrom_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    sr_ratio: int = 1,
    max_landmarks: Limit = 7,
    inverse: PseudoInverse = "iterative",
    iters: int = 6,
    landmarks: Landmarks = "grid",
    fused: bool = True,
) -> Tensor:
    """Return `attention_through_landmarks` that are averages of q and of k; tensors `[B, H, P + N, D]`.

    sr_ratio: side of the window that one landmark stands for. max_landmarks: the largest grid of them. landmarks: see
    `landmark_tokens`.
    inverse: `iterative` (iters steps of `iterative_pseudo_inverse`) or `exact` (`torch.linalg.pinv`, by singular
        values: slow, for analysis).
    fused: use torch's kernels, which do not store the N x M matrices.
    """
    limit = grid_limit("max_landmarks", max_landmarks, layout.sequence)
    sr_ratio, iters = at_least("sr_ratio", sr_ratio), at_least("iters", iters, 0)
    (of_queries, exist), (of_keys, _) = (landmark_tokens(x, layout, sr_ratio, limit, landmarks) for x in (q, k))
    return attention_through_landmarks(q, k, v, of_queries, of_keys, exist, layout, inverse, iters, fused)
