"""Newton-Raphson's iteration towards the inverse of a kernel matrix: its starts and its steps.

Letters: `A` [..., M, M] symmetric with entries in (0, 1], `P = A + ridge I`, `V_t` the t-th iterate.

The iteration `V <- 2 V - V P V` (SOFT, arXiv 2110.11945, Sec. 3.3) started at `V_0 = alpha P` is a spectral filter:
where P has the eigenvalue p, the iterate has `(1 - (1 - alpha p^2)^(2^T)) / p`. It equals 1 / p only where
2^T alpha p^2 >> 1, so on an ill-conditioned P it is far from the inverse, and trained weights rely on that.
"""

from typing import Literal

import torch
from torch import Tensor

from soft_vit.ops.modes import are_dispatched

NewtonStart = Literal["rowsum", "guarded", "guarded_batch"]

NEWTON_STARTS = ("rowsum", "guarded", "guarded_batch")

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
