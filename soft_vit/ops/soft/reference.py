"""The operator as the papers write it, differentiated by autograd, and its inverse by an eigendecomposition.

Letters: see `attention.py`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from soft_vit.ops.gaussian import gaussian_kernel, self_gaussian_kernel
from soft_vit.ops.numerics import at_least_float32, full_precision
from soft_vit.ops.soft.cholesky import cholesky_solve
from soft_vit.ops.soft.newton import newton_inverse
from soft_vit.ops.soft.options import InverseOptions, add_ridge


def soft_attention_reference(q: Tensor, bottleneck: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Return `soft_attention` as the papers write it, for tests of the fast forms. options: of `InverseOptions`."""
    return attend(q, bottleneck, v, InverseOptions(**options))


def attend(q: Tensor, bottleneck: Tensor, v: Tensor, options: InverseOptions, k: Tensor | None = None) -> Tensor:
    """Return `K1 A^+ (K1^T v)`, or normalised `K1 D A^+ D (K1^T v)`; shapes as in `soft_attention`.

    k: keys, whose kernel replaces `K1^T`; by default q.
    """
    k1 = gaussian_kernel(q, bottleneck)
    a = self_gaussian_kernel(bottleneck)
    scale = a.sum(-1, keepdim=True).rsqrt() if options.normalize else torch.ones_like(a[..., :1])
    z = scale * ((k1.mT if k is None else gaussian_kernel(bottleneck, k)) @ v)
    if options.inverse == "cholesky":
        y = cholesky_solve(a, z, options.ridge)
    elif options.inverse == "eigh":
        y = eigh_inverse(a, options.ridge) @ z
    else:
        how = options.newton_iters, options.ridge, options.newton_start, options.newton_gradient
        y = newton_inverse(a, *how) @ z
    return k1 @ (scale * y)


def gradients_by_autograd(inputs: Sequence[Tensor], grad: Tensor, options: InverseOptions) -> tuple[Tensor, ...]:
    """Return the gradients of `attend(*inputs, options)` for q, the bottleneck tokens and v.

    They can be differentiated again, unlike gradients written by hand.
    """
    with torch.enable_grad(), full_precision(grad):
        inputs = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in inputs]
        q, bottleneck, v = map(at_least_float32, inputs)
        x = attend(q, bottleneck, v, options)
        return torch.autograd.grad(x, inputs, grad.to(x.dtype), create_graph=True)


def eigh_inverse(a: Tensor, ridge: float = 0.01) -> Tensor:
    """Return the Moore-Penrose inverse of `A + ridge I` from an eigendecomposition, for A `[..., M, M]`, symmetric.

    It drops eigenvalues within rounding of zero.
    """
    with full_precision(a):
        return torch.linalg.pinv(add_ridge(at_least_float32(a), ridge), hermitian=True)
