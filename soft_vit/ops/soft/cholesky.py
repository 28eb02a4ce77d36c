"""Solve with the kernel matrix between bottleneck tokens by a Cholesky factorisation, `A + ridge I = L L^T`."""

import math

import torch
from torch import Tensor

from soft_vit.ops.numerics import at_least_float32, full_precision
from soft_vit.ops.soft.options import add_ridge, check_ridge


def cholesky_solve(a: Tensor, b: Tensor, ridge: float = 0.01) -> Tensor:
    """Return `(A + ridge I)^-1 b` by a Cholesky factorisation, without forming the inverse.

    a: `[..., M, M]` symmetric positive semi-definite, b: `[..., M, K]`; the result is `[..., M, K]`, at least fp32,
    with exact gradients. ridge must be positive, because a kernel matrix is singular when two tokens agree. A matrix
    that is not positive definite gives NaN instead of an error, because a check would make the CPU wait for the GPU.
    """
    check_ridge(ridge)
    with full_precision(a):
        a, b = at_least_float32(a), at_least_float32(b)
        return solve_factored(cholesky_factor(add_ridge(a, ridge)), b)


def cholesky_factor(p: Tensor) -> Tensor:
    """Return the lower triangular L of `P = L L^T`, `[..., M, M]`; NaN where P is not positive definite."""
    factor, info = torch.linalg.cholesky_ex(p)
    # Libraries stop there and leave a partial factor.
    return factor.masked_fill(info[..., None, None] != 0, math.nan)


def solve_factored(factor: Tensor, b: Tensor) -> Tensor:
    """Return `(L L^T)^-1 b` for the lower triangular factor L `[..., M, M]` and b `[..., M, K]`."""
    if factor.device.type != "cuda":
        return torch.cholesky_solve(b, factor)
    # On a GPU, cholesky_solve of a batch calls MAGMA, which allocates memory of its own in each call: the CPU waits for
    # the GPU, and CUDA graphs cannot capture it.
    down = torch.linalg.solve_triangular(factor, b, upper=False)
    return torch.linalg.solve_triangular(factor.mT, down, upper=True)
