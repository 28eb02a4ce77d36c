"""Inverses of the kernel matrix between bottleneck tokens: Newton-Raphson's iteration, Cholesky, and an oracle.

Letters: `A` [..., M, M] symmetric with entries in (0, 1], `P = A + ridge I`, `V_t` the t-th Newton-Raphson iterate, T
the last t.

The iteration `V <- 2 V - V P V` (SOFT, arXiv 2110.11945, Sec. 3.3) started at `V_0 = alpha P` is a spectral filter:
where P has the eigenvalue p, the iterate has `(1 - (1 - alpha p^2)^(2^T)) / p`. It equals 1 / p only where
2^T alpha p^2 >> 1, so on an ill-conditioned P it is far from the inverse, and trained weights rely on that.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from soft_vit.ops.numerics import (
    Backend,
    are_dispatched,
    at_least_float32,
    check_choice,
    forbids_autograd_function,
    full_precision,
    full_precision_backward,
    takes_triton,
)
from soft_vit.ops.soft.triton.op import fused_newton_inverse
from soft_vit.ops.soft.triton.support import unsupported_inverse

Inverse = Literal["newton", "cholesky", "eigh"]
NewtonStart = Literal["rowsum", "guarded_image", "guarded_batch"]
NewtonGradient = Literal["closed_form", "unrolled"]

# Of the released normalised models.
MAX_HALVINGS = 10
RESIDUAL_BOUND = 1.01
# Twenty steps from alpha p^2 = 2 - 2e-5 leave exp(-2^21 * 1e-5) of a mode; rounding of row sums cannot reach 2.
MODE_BOUND = 2 - 2e-5


@dataclass(frozen=True)
class InverseOptions:
    """How softmax-free attention inverts its kernel matrix; `soft_vit.ops.soft_attention` explains each option.

    ValueError for an unknown choice, a negative number of steps or ridge, and a Cholesky factor without a ridge.
    """

    inverse: Inverse = "newton"
    normalize: bool = False
    iters: int = 20
    ridge: float = 0.01
    start: NewtonStart = "rowsum"
    gradient: NewtonGradient = "closed_form"

    def __post_init__(self) -> None:
        check_choice("inverse", self.inverse, get_args(Inverse))
        check_choice("start", self.start, get_args(NewtonStart))
        check_choice("gradient", self.gradient, get_args(NewtonGradient))
        if self.inverse == "cholesky":
            check_ridge(self.ridge)
        for name, released in (("iters", 20), ("ridge", 0.01)):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative; use {released}, as released.")


def add_ridge(a: Tensor, ridge: float) -> Tensor:
    """`A + ridge I` for `[..., M, M]`."""
    if ridge == 0:
        return a
    return a + ridge * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)


def newton_step_size(a: Tensor, ridge: float, start: NewtonStart) -> Tensor:
    """The factor alpha of `V_0 = alpha P`, `[..., H, 1, 1]`, for the matrices `[..., H, M, M]` of H heads.

    `rowsum`: `1.8 / r^2` with r the largest row sum of A, for each matrix alone; the rule of the released `soft_*`
    models. From a ridge of 5 % of r on, 95 % of the row sum of P replaces r, or the iteration would diverge.
    `guarded_image`: `2 / r^2`, halved at most ten times until no column of `|I - P V_0|` sums to more than 1.01, with
    both maxima over the heads of one image: the rule of the released `soft_norm_*` models at batch 1. Where it would
    leave a mode at zero for ever (`alpha p^2 = 2`: tokens far from all others, or a far group with equal row sums),
    alpha is reduced by up to 1e-5, for that matrix alone. A 1 x 1 matrix gets its exact inverse.
    `guarded_batch`: the released rule, unchanged, with both maxima over all matrices of the call.
    """
    rows = a.sum(-1, keepdim=True)
    largest = rows.amax((-2, -1), keepdim=True)
    if start == "rowsum":
        return 1.8 / torch.maximum(largest, 0.95 * (largest + ridge)).square()
    if start == "guarded_image" and a.shape[-1] == 1:
        return 1 / add_ridge(a, ridge).square()
    if not a.numel():
        # An empty tensor has no maximum.
        return largest
    shared = tuple(range(a.ndim)) if start == "guarded_batch" else tuple(range(-min(a.ndim, 3), 0))
    candidates = 0.5 ** torch.arange(MAX_HALVINGS + 1, dtype=a.dtype, device=a.device)
    candidates = 2.0 / largest.amax(shared, keepdim=True).square() * candidates[:, None]
    # Entries of P are positive, so the column sums of |I - alpha P P| need only the diagonal and the sums of P P.
    diagonal = add_ridge(a, ridge).square().sum(-1)[..., None, :]
    total = (a @ rows + 2 * ridge * rows + ridge**2).mT
    residual = (1 - candidates * diagonal).abs() + candidates * (total - diagonal)
    residual = residual.amax(-1, keepdim=True)
    if len(shared) > 2:
        residual = residual.amax(shared[:-2], keepdim=True)
    # The largest candidate within the bound, or the last and smallest where none is.
    alpha = torch.where(residual <= RESIDUAL_BOUND, candidates, candidates[..., -1:, :]).amax(-2, keepdim=True)
    alpha = alpha.expand_as(largest)
    if start == "guarded_image":
        # No eigenvalue of P P is above its largest row sum.
        alpha = torch.minimum(alpha, MODE_BOUND / total.amax(-1, keepdim=True))
    return alpha


def newton_iterate(p: Tensor, v: Tensor, iters: int) -> Tensor:
    """`iters` steps `V <- 2 V - V P V` from V = v; `[..., M, M]`, differentiable by autograd.

    On a CPU, without autograd, they end where the iteration has: a step squares `I - P V`, so none changes V any more
    once that is below the root of the rounding unit.
    """
    shape = v.shape
    p, v = p.reshape(-1, *p.shape[-2:]), v.reshape(-1, *v.shape[-2:])
    may_end_early = _may_end_early(p, v)
    for _ in range(iters):
        product = torch.bmm(p, v)
        last = may_end_early and _is_near_identity(product)
        v = torch.baddbmm(v, v, product, beta=2, alpha=-1)
        if last:
            break
    return v.reshape(shape)


def _may_end_early(p: Tensor, v: Tensor) -> bool:
    """Whether steps may end once they change nothing: where values can be looked at, and no gradient needs them all."""
    # A counter of operations gets the same number as on shapes alone, where there are no values.
    if p.device.type != "cpu" or are_dispatched(p, v):
        return False
    return p.numel() > 0 and not (torch.is_grad_enabled() and (p.requires_grad or v.requires_grad))


def _is_near_identity(product: Tensor) -> bool:
    """Whether `||I - product||` of each matrix `[P, M, M]` is below the root of the rounding unit; no where NaN is."""
    bound = torch.finfo(product.dtype).eps ** 0.5
    # The diagonal first: it alone tells most of the steps.
    if not bool((product.diagonal(dim1=1, dim2=2) - 1).abs().amax() <= bound):
        return False
    remainder = product - torch.eye(product.shape[-1], dtype=product.dtype, device=product.device)
    return bool(torch.linalg.matrix_norm(remainder).amax() <= bound)


def newton_iterates(a: Tensor, iters: int, ridge: float, start: NewtonStart) -> Tensor:
    """`V_T` in batched products; a `[..., H, M, M]`, at least fp32."""
    p = add_ridge(a, ridge)
    return newton_iterate(p, newton_step_size(a, ridge, start) * p, iters)


class _NewtonInverse(torch.autograd.Function):
    """The iteration with the gradient of the exact inverse, `dA = -V^T G V^T`, at its result."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, iters: int, ridge: float, start: NewtonStart) -> Tensor:
        v = newton_iterates(a, iters, ridge, start)
        ctx.save_for_backward(v)
        return v

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
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

    a: `[..., H, M, M]`, symmetric with positive entries, or one such matrix; the result has its shape, at least fp32.
    start: see `newton_step_size`; the H matrices are those of one image's heads.
    gradient: `closed_form` is the released backward, `-V^T G V^T`, which is exact where the iteration has converged and
    stores one matrix; `unrolled` is the true gradient of the truncated iteration, start included, and stores 2 T. Under
    `torch.jit.trace` and the transforms of `torch.func` it is always the latter.
    backend: `triton` is one kernel for all steps of matrices up to 64 x 64, `eager` batched products; None takes
    `triton` on a GPU where it has the case. ValueError where `triton` is asked for and does not have it.
    """
    check_choice("start", start, get_args(NewtonStart))
    check_choice("gradient", gradient, get_args(NewtonGradient))
    unrolled = gradient == "unrolled" and torch.is_grad_enabled() and a.requires_grad
    fused = takes_triton(backend, a.device.type, unsupported_inverse(a, unrolled))
    with full_precision(a):
        a = at_least_float32(a)
        if fused:
            step_size = None if start == "rowsum" else newton_step_size(a, ridge, start)
            return fused_newton_inverse(a, step_size, iters, ridge)
        differentiated = torch.is_grad_enabled() and a.requires_grad
        if gradient == "closed_form" and differentiated and not forbids_autograd_function(a):
            return _NewtonInverse.apply(a, iters, ridge, start)
        return newton_iterates(a, iters, ridge, start)


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


def check_ridge(ridge: float) -> None:
    """ValueError for a ridge with which a kernel matrix may have no Cholesky factor."""
    if not ridge > 0:
        raise ValueError(f"ridge={ridge} leaves equal tokens with a singular kernel; use a positive one, such as 0.01.")


def cholesky_solve(a: Tensor, b: Tensor, ridge: float = 0.01) -> Tensor:
    """`(A + ridge I)^-1 b` by a Cholesky factorisation, without forming the inverse.

    a: `[..., M, M]` symmetric positive semi-definite, b: `[..., M, K]`; the result is `[..., M, K]`, at least fp32,
    with exact gradients. ridge must be positive: a kernel matrix is singular when two tokens agree. A matrix that is
    not positive definite gives NaN, not an error, because asking would make a GPU wait.
    """
    check_ridge(ridge)
    with full_precision(a):
        a, b = at_least_float32(a), at_least_float32(b)
        return solve_factored(cholesky_factor(add_ridge(a, ridge)), b)


def cholesky_factor(p: Tensor) -> Tensor:
    """The lower triangular L of `P = L L^T`, `[..., M, M]`; NaN where P is not positive definite."""
    factor, info = torch.linalg.cholesky_ex(p)
    # There, libraries stop and leave numbers, which a solve would take for a factor.
    return factor.masked_fill(info[..., None, None] != 0, math.nan)


def solve_factored(factor: Tensor, b: Tensor) -> Tensor:
    """`(L L^T)^-1 b` for the lower triangular factor L `[..., M, M]` and b `[..., M, K]`."""
    if factor.device.type != "cuda":
        return torch.cholesky_solve(b, factor)
    # For a batch, cholesky_solve takes MAGMA, which allocates and frees memory of its own in each call: the CPU waits
    # for the GPU, and no CUDA graph can hold it.
    down = torch.linalg.solve_triangular(factor, b, upper=False)
    return torch.linalg.solve_triangular(factor.mT, down, upper=True)
