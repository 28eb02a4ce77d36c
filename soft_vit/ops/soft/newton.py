"""The inverse of the kernel matrix between bottleneck tokens, by Newton-Raphson's iteration (SOFT, arXiv 2110.11945).

`V_{t+1} = 2 V_t - V_t P V_t` from `V_0 = alpha P` (Sec. 3.3), with `P = A + ridge I`, A `[..., M, M]` symmetric with
entries in (0, 1], and T steps.

It is a spectral filter: where P has the eigenvalue p, V_T has `(1 - (1 - alpha p^2)^(2^T)) / p`. This is 1 / p only
where 2^T alpha p^2 >> 1. So for an ill-conditioned P, V_T is far from the inverse, and trained weights rely on that.
"""

import math
from typing import Any, get_args

import torch
from torch import Tensor

from soft_vit.ops.cpu import on_cpu_without_gradients
from soft_vit.ops.numerics import at_least_float32, check_choice, full_precision, full_precision_backward, in_transform
from soft_vit.ops.soft.options import NewtonGradient, NewtonStart, add_ridge

# Of the released normalised models: how often alpha is halved at most, and the bound of a column sum of |I - P V_0|.
MAX_HALVINGS = 10
RESIDUAL_BOUND = 1.01
# The largest alpha p^2 of a mode. It is above the rounding error of row sums away from 2, where a mode stays zero, and
# twenty steps from it leave exp(-2^21 * 1e-5) of the mode.
MODE_BOUND = 2 - 2e-5
# Steps before the first check of convergence. A start damps some mode by 0.8 at most: no inverse converges faster.
UNCHECKED_STEPS = 5


def newton_step_size(a: Tensor, ridge: float, start: NewtonStart) -> Tensor:
    """Return alpha of `V_0 = alpha P`, `[..., H, 1, 1]`, for the matrices `[..., H, M, M]` of H heads.

    `rowsum`: `1.8 / r^2` with r the largest row sum of A, for each matrix alone. This is the rule of the released
    `soft_*` models; for a ridge of 5 % of r or more, where it would diverge, 95 % of the row sum of P replaces r.
    `guarded_image`: `2 / r^2`, halved at most ten times, until no column of `|I - P V_0|` sums to more than 1.01; both
    maxima are over the heads of one image. This is the rule of the released `soft_norm_*` models at batch 1. If
    `alpha p^2 = 2`, a mode would stay zero (tokens far from all others, or a far group with equal row sums): there
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
        # amax fails for an empty tensor.
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
    # The largest candidate within the bound, or the smallest of all.
    alpha = torch.where(residual <= RESIDUAL_BOUND, candidates, candidates[..., -1:, :]).amax(-2, keepdim=True)
    alpha = alpha.expand_as(largest)
    if start == "guarded_image":
        # No eigenvalue of P P is above its largest row sum.
        alpha = torch.minimum(alpha, MODE_BOUND / total.amax(-1, keepdim=True))
    return alpha


def newton_iterate(p: Tensor, v: Tensor, iters: int) -> Tensor:
    """Take `iters` steps `V <- 2 V - V P V` from V = v; `[..., M, M]`, differentiable by autograd.

    On a CPU, without gradients, the loop ends once the iteration has converged: a step squares `I - P V`, so V stays
    the same once that is below the root of the rounding unit.
    """
    shape = v.shape
    p, v = p.reshape(-1, *p.shape[-2:]), v.reshape(-1, *v.shape[-2:])
    may_end_early = p.numel() > 0 and on_cpu_without_gradients(p, v)
    if torch.compiler.is_exporting():
        # As V (2 I - P V): runtimes have no product with a sum and factors, so three operators a step instead of five.
        twice = 2 * torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)
        for _ in range(iters):
            v = torch.bmm(v, twice - torch.bmm(p, v))
        return v.reshape(shape)
    for step in range(iters):
        product = torch.bmm(p, v)
        last = may_end_early and step >= UNCHECKED_STEPS and _is_near_identity(product)
        v = torch.baddbmm(v, v, product, beta=2, alpha=-1)
        if last:
            break
    return v.reshape(shape)


def _is_near_identity(product: Tensor) -> bool:
    """Return whether `||I - product||` of each matrix `[P, M, M]` is below the root of the rounding unit."""
    # Comparisons with NaN are false.
    bound = torch.finfo(product.dtype).eps ** 0.5
    # The diagonal first: it is cheap, and rules out most steps.
    if not torch.linalg.vector_norm(product.diagonal(dim1=1, dim2=2) - 1, math.inf).item() <= bound:
        return False
    remainder = product - torch.eye(product.shape[-1], dtype=product.dtype, device=product.device)
    return torch.linalg.matrix_norm(remainder).amax().item() <= bound


def newton_iterates(a: Tensor, iters: int, ridge: float, start: NewtonStart) -> Tensor:
    """Return `V_T` of a `[..., H, M, M]`, which is at least fp32."""
    p = add_ridge(a, ridge)
    return newton_iterate(p, newton_step_size(a, ridge, start) * p, iters)


class _NewtonInverse(torch.autograd.Function):
    """Compute `V_T`, with the gradient of an exact inverse, `dA = -V^T G V^T`."""

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
) -> Tensor:
    """Return `V_T`, the T-th Newton-Raphson iterate towards `(A + ridge I)^-1`, in batched products.

    a: `[..., H, M, M]`, symmetric with positive entries, or one such matrix; the result has its shape, at least fp32.
    iters: T. start: see `newton_step_size`; the H matrices are those of one image's heads.
    gradient: `closed_form` is the released backward, `-V^T G V^T`, which stores one matrix and is exact where the
        iteration has converged. `unrolled` is the true gradient of T steps, start included, and stores 2 T matrices.
        Transforms of `torch.func` always take `unrolled`.
    """
    check_choice("start", start, get_args(NewtonStart))
    check_choice("gradient", gradient, get_args(NewtonGradient))
    with full_precision(a):
        a = at_least_float32(a)
        if gradient == "closed_form" and not in_transform() and not torch.compiler.is_exporting():
            return _NewtonInverse.apply(a, iters, ridge, start)
        return newton_iterates(a, iters, ridge, start)


def newton_residual(a: Tensor, iters: int = 20, ridge: float = 0.01, start: NewtonStart = "rowsum") -> Tensor:
    """Return how far `newton_inverse` is from the inverse: `||I - P V_T||_F / sqrt(M)`, for each matrix, `[...]`.

    a: `[..., M, M]`, symmetric with positive entries. The residual is the root mean square of `(1 - alpha p^2)^(2^T)`
    over the eigenvalues p of P: 0 if the iteration has converged, 1 if it has not begun to.
    """
    with full_precision(a):
        a = at_least_float32(a)
        product = add_ridge(a, ridge) @ newton_inverse(a, iters, ridge, start)
        remainder = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device) - product
        return torch.linalg.matrix_norm(remainder) / math.sqrt(a.shape[-1])
