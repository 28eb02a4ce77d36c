"""The Gaussian kernel of softmax-free attention (SOFT, arXiv 2110.11945, Eq. 5)."""

import torch
from torch import Tensor

from soft_vit.ops.layout import WHOLE, Layout
from soft_vit.ops.numerics import at_least_float32, full_precision


def gaussian_kernel(q: Tensor, k: Tensor) -> Tensor:
    """Return `exp(-||q_i - k_j||^2 / 2)` for every pair of rows.

    q: `[..., N, D]`, k: `[..., M, D]`, of any real dtype and strides. The result `[..., N, M]`, in [0, 1], is at least
    fp32, also under autocast. Squared distances that rounding makes negative are clamped to zero, so that large inputs
    cannot give infinities.
    """
    with full_precision(q):
        q, k = at_least_float32(q), at_least_float32(k)
        # Minus half the squared distance, up to rounding.
        return torch.exp((q @ k.mT + half_norms(q) + half_norms(k).mT).clamp(max=0))


def self_gaussian_kernel(x: Tensor) -> Tensor:
    """Return `gaussian_kernel(x, x)` `[..., M, M]` of x `[..., M, D]`, symmetric, with a diagonal of exactly one.

    The inverse depends most on the diagonal. Computed as other entries, it would have the rounding of a difference of
    large numbers.
    """
    with full_precision(x):
        x = at_least_float32(x)
        off_diagonal = 1 - torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
        norms = half_norms(x)
        return torch.exp((x @ x.mT + norms + norms.mT).clamp(max=0) * off_diagonal)


def half_norms(x: Tensor) -> Tensor:
    """Return `-||x_i||^2 / 2` of each row, `[..., N, 1]`."""
    return -0.5 * x.square().sum(-1, keepdim=True)


def gaussian_attention(
    q: Tensor, v: Tensor, normalize: bool = False, mask: Tensor | None = None, k: Tensor | None = None
) -> Tensor:
    """Return `S v`, `S = exp(-||q_i - q_j||^2 / 2)`, in v's dtype; q `[..., N, D]`, v and the result `[..., N, Dv]`.

    normalize: return `D S D v` with `D = diag(rowsum(S))^(-1/2)` (arXiv 2207.03341, Sec. 3).
    mask: bool, broadcast to `[..., N, N]`, True for valid keys.
    k: keys `[..., M, D]` of values `[..., M, Dv]`, without normalize; by default q.
    """
    with full_precision(q):
        dtype, v = v.dtype, at_least_float32(v)
        kernel = self_gaussian_kernel(q) if k is None else gaussian_kernel(q, k)
        if mask is not None:
            kernel = kernel * mask
            # 0 * inf would be NaN.
            v = v.masked_fill(~mask.mT, 0)
        if not normalize:
            return (kernel @ v).to(dtype)
        scale = kernel.sum(-1, keepdim=True).rsqrt()
        if mask is not None:
            scale = scale.masked_fill(~mask.mT, 0)
        return (scale * (kernel @ (scale * v))).to(dtype)


def scaled_gaussian_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout = WHOLE, normalize: bool = False
) -> Tensor:
    """Return `gaussian_attention` of q and k `[B, H, N, D]` over `D^(1/4)`; where k is q, the kernel is symmetric."""
    scale = q.shape[-1] ** -0.25
    return gaussian_attention(q * scale, v, normalize, layout.key_mask, None if k is q else k * scale)
