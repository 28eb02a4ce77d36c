"""Inverses of the m x m kernel matrix between bottleneck tokens.

Letters: `A` [..., M, M] symmetric with entries in (0, 1], `P = A + ridge I`, `V_t` the t-th Newton-Raphson iterate.

The Newton-Raphson iteration `V <- 2 V - V P V` (SOFT, arXiv 2110.11945, Sec. 3.3) started at `V_0 = alpha P` is a
spectral filter: where P has the eigenvalue p, the iterate has `(1 - (1 - alpha p^2)^(2^T)) / p`. It equals 1 / p only
where 2^T alpha p^2 >> 1, so on an ill-conditioned P it is far from the inverse, and trained weights rely on that.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from soft_vit.ops.choices import Backend, check_choice, takes_triton
from soft_vit.ops.modes import are_dispatched, in_function_transform, is_dual
from soft_vit.ops.precision import at_least_float32, full_precision, full_precision_backward
from soft_vit.ops.triton.newton_op import fused_newton_inverse
from soft_vit.ops.triton.support import unsupported_inverse

NewtonStart = Literal["rowsum", "guarded", "guarded_batch"]
NewtonGradient = Literal["closed_form", "unrolled"]

NEWTON_STARTS = ("rowsum", "guarded", "guarded_batch")
NEWTON_GRADIENTS = ("closed_form", "unrolled")

MAX_HALVINGS = 10
RESIDUAL_BOUND = 1.01
ISOLATED_BOUND = 1.99
# Within it, twenty steps leave exp(-2^21 * 1e-5) of a mode, and rounding of row sums cannot reach 2.
MODE_BOUND = 2 - 2e-5


def add_ridge(a: Tensor, ridge: float) -> Tensor:
    """`A + ridge I` for `[..., M, M]`."""
    if ridge == 0:
        return a
    return a + ridge * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)


def newton_step_size(a: Tensor, ridge: float, start: NewtonStart) -> Tensor:
    """The factor alpha of `V_0 = alpha P`, `[..., 1, 1]`.

    `rowsum`: `1.8 / r^2` with r the largest row sum of A; the rule of the released `soft_*` models. From a ridge of 5 %
    of r on, 95 % of the row sum of P is taken for r, without which the iteration would diverge.
    `guarded`: `2 / r^2`, halved at most ten times until no column of `|I - P V_0|` sums to more than 1.01; the rule
    of the released `soft_norm_*` models, here for each matrix by itself and without a data-dependent loop. It is halved
    as well for tokens far from all others, and for groups of tokens whose row sums all are r, as those of a far pair
    are: at 2 their modes would stay zero for ever. It is kept below `1.8 / (r + ridge)^2` with a ridge. A 1 x 1 matrix
    gets its exact inverse.
    `guarded_batch`: the released rule with both maxima taken over all matrices of the call.
    """
    rows = a.sum(-1, keepdim=True)
    largest = rows.amax((-2, -1))
    if start == "rowsum":
        return (1.8 / torch.maximum(largest, 0.95 * (largest + ridge)).square())[..., None, None]
    if start == "guarded" and a.shape[-1] == 1:
        return 1 / add_ridge(a, ridge).square()
    if start == "guarded_batch":
        # An empty tensor has no maximum.
        largest = largest.amax().expand_as(largest) if largest.numel() else largest
    alpha = (2.0 / largest.square())[..., None] * 0.5 ** torch.arange(MAX_HALVINGS + 1, dtype=a.dtype, device=a.device)
    # Entries of P are positive, so the column sums of |I - alpha P P| need only the diagonal and the sums of P P.
    diagonal = add_ridge(a, ridge).square().sum(-1)[..., None, :]
    squared_rows = a @ rows
    total = (squared_rows + 2 * ridge * rows + ridge**2).mT
    scale = alpha[..., None]
    residual = ((1 - scale * diagonal).abs() + scale * (total - diagonal)).amax(-1)
    if start == "guarded_batch" and residual.numel():
        residual = residual.amax(tuple(range(residual.ndim - 1)), keepdim=True).expand_as(residual)
    within = residual <= RESIDUAL_BOUND
    if start == "guarded":
        # A token far from all others is an eigenvector of P; at alpha p^2 = 2 the first step maps its mode to zero,
        # where it stays.
        within &= (scale * diagonal).amax(-1) <= ISOLATED_BOUND
        # So is the constant vector of a group of equal row sums, far from the rest. No eigenvalue of A A is above its
        # largest row sum.
        within &= alpha * squared_rows.amax(-2) <= MODE_BOUND
    # The largest candidate within the bound, or the last and smallest where none is.
    alpha = torch.where(within, alpha, alpha[..., -1:]).amax(-1)
    if start == "guarded" and ridge > 0:
        alpha = torch.minimum(alpha, 1.8 / (largest + ridge).square())
    return alpha[..., None, None]


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
