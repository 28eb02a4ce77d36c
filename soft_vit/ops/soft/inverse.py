"""Inverses of the m x m kernel matrix between bottleneck tokens.

Letters: `A` [..., M, M] symmetric with entries in (0, 1], `P = A + ridge I`, `V_T` the last Newton-Raphson iterate.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from soft_vit.ops.choices import Backend, check_choice, takes_triton
from soft_vit.ops.modes import in_function_transform, is_dual
from soft_vit.ops.numerics import at_least_float32, full_precision, full_precision_backward
from soft_vit.ops.soft.newton import NEWTON_STARTS, NewtonStart, add_ridge, newton_iterate, newton_step_size
from soft_vit.ops.soft.triton.newton_op import fused_newton_inverse
from soft_vit.ops.soft.triton.support import unsupported_inverse

NewtonGradient = Literal["closed_form", "unrolled"]

NEWTON_GRADIENTS = ("closed_form", "unrolled")


class _NewtonInverse(torch.autograd.Function):
    """The iteration with the gradient of the exact inverse, `dA = -V^T G V^T`, at its result."""

    @staticmethod
    def forward(ctx, a: Tensor, iters: int, ridge: float, start: NewtonStart) -> Tensor:
        p = add_ridge(a, ridge)
        v = newton_iterate(p, newton_step_size(a, ridge, start) * p, iters)
        ctx.save_for_backward(v)
        return v

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (v,) = ctx.saved_tensors
        with full_precision_backward(v):
            return -(v.mT @ grad @ v.mT), None, None, None


def newton_inverse(
    a: Tensor,
    iters: int = 20,
    ridge: float = 0.01,
    start: NewtonStart = "rowsum",
    gradient: NewtonGradient = "closed_form",
    backend: Backend | None = None,
) -> Tensor:
    """`V_T`, the T-th Newton-Raphson iterate towards `(A + ridge I)^-1`.

    a: `[..., M, M]`, symmetric with positive entries; the result has its shape, at least fp32.
    gradient: `closed_form` is the released backward, `-V^T G V^T`, which is exact where the iteration has converged and
    stores one matrix; `unrolled` is the true gradient of the truncated iteration, start included, and stores 2 T. Under
    `torch.jit.trace` and the transforms of `torch.func` it is always the latter.
    backend: `triton` is one kernel for all steps of matrices up to 64 x 64, `eager` batched products; None takes
    `triton` on a GPU where it has the case. ValueError where `triton` is asked for and does not have it.
    """
    check_choice("start", start, NEWTON_STARTS)
    check_choice("gradient", gradient, NEWTON_GRADIENTS)
    unrolled = gradient == "unrolled" and torch.is_grad_enabled() and a.requires_grad
    fused = takes_triton(backend, a.device.type, unsupported_inverse(a, start, unrolled))
    with full_precision(a):
        a = at_least_float32(a)
        if fused:
            return fused_newton_inverse(a, iters, ridge, start)
        # A trace that holds an autograd.Function cannot be saved; torch.func and forward mode cannot see into one.
        traced = torch.jit.is_tracing() or in_function_transform() or is_dual(a)
        if gradient == "closed_form" and torch.is_grad_enabled() and a.requires_grad and not traced:
            return _NewtonInverse.apply(a, iters, ridge, start)
        p = add_ridge(a, ridge)
        return newton_iterate(p, newton_step_size(a, ridge, start) * p, iters)


def newton_residual(a: Tensor, iters: int = 20, ridge: float = 0.01, start: NewtonStart = "rowsum") -> Tensor:
    """How far `newton_inverse` is from the inverse: `||I - P V_T||_F / sqrt(M)`, for each matrix, `[...]`.

    a: `[..., M, M]`, symmetric with positive entries. The root mean square of `(1 - alpha p^2)^(2^T)` over the
    eigenvalues p of P: 0 where the iteration has converged, 1 where none of the inverse is there yet.
    """
    with full_precision(a):
        a = at_least_float32(a)
        product = add_ridge(a, ridge) @ newton_inverse(a, iters, ridge, start)
        remainder = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device) - product
        return torch.linalg.matrix_norm(remainder) / math.sqrt(a.shape[-1])


def eigh_inverse(a: Tensor, ridge: float = 0.01, iters: int | None = None, alpha: Tensor | None = None) -> Tensor:
    """The oracle: the inverse of `A + ridge I`, or the exact Newton filter of it, from an eigendecomposition.

    a: `[..., M, M]` symmetric. Without `iters` the Moore-Penrose inverse (eigenvalues within rounding of zero are
    dropped); with `iters` and `alpha` `[..., 1, 1]` what `newton_inverse` computes in exact arithmetic.
    """
    with full_precision(a):
        a = at_least_float32(a)
        eigenvalue, basis = torch.linalg.eigh(add_ridge(a, ridge))
        if iters is None:
            floor = a.shape[-1] * torch.finfo(a.dtype).eps * eigenvalue.abs().amax(-1, keepdim=True)
            kept = eigenvalue.abs() > floor
            inverse = torch.where(kept, 1 / torch.where(kept, eigenvalue, 1), 0)
        elif alpha is None:
            raise ValueError("eigh_inverse(iters=...) needs alpha, the factor of the start; see newton_step_size.")
        else:
            inverse = _filtered_inverse(eigenvalue, alpha[..., 0], iters)
        return (basis * inverse[..., None, :]) @ basis.mT


def _filtered_inverse(p: Tensor, alpha: Tensor, iters: int) -> Tensor:
    """`(1 - (1 - x)^(2^T)) / p` with `x = alpha p^2`, accurate for tiny x, where it tends to `2^T alpha p`."""
    if iters == 0:
        # The one power that is odd, where 1 - x keeps its sign.
        return alpha * p
    x = alpha * p.square()
    log_remainder = torch.where(x < 0.5, torch.log1p(-torch.where(x < 0.5, x, 0)), torch.log((1 - x).abs()))
    filtered = -torch.expm1(log_remainder * 2.0**iters)
    tiny = x < torch.finfo(x.dtype).tiny
    return torch.where(tiny, 2.0**iters * alpha * p, filtered / torch.where(tiny, 1, p))
