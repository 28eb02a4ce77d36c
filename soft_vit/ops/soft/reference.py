"""The operator as the papers write it, differentiated by autograd; letters as in `soft_attention.py`."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from soft_vit.ops.gaussian import gaussian_kernel, self_gaussian_kernel
from soft_vit.ops.numerics import at_least_float32, full_precision
from soft_vit.ops.soft.cholesky import cholesky_solve
from soft_vit.ops.soft.inverse import NewtonGradient, eigh_inverse, newton_inverse
from soft_vit.ops.soft.newton import NewtonStart

Inverse = Literal["newton", "cholesky", "eigh"]


def soft_attention_reference(
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    inverse: Inverse = "newton",
    normalize: bool = False,
    iters: int = 20,
    ridge: float = 0.01,
    start: NewtonStart = "rowsum",
    gradient: NewtonGradient = "closed_form",
) -> Tensor:
    """`soft_attention` as the papers write it, differentiated by autograd: what the fast form is tested against."""
    k1 = gaussian_kernel(q, bottleneck)
    a = self_gaussian_kernel(bottleneck)
    z = k1.mT @ v
    scale = a.sum(-1, keepdim=True).rsqrt() if normalize else torch.ones_like(a[..., :1])
    if inverse == "cholesky":
        y = cholesky_solve(a, scale * z, ridge)
    elif inverse == "eigh":
        y = eigh_inverse(a, ridge) @ (scale * z)
    else:
        y = newton_inverse(a, iters, ridge, start, gradient, "eager") @ (scale * z)
    return k1 @ (scale * y)


def gradients_by_autograd(inputs: Sequence[Tensor], grad: Tensor, *options: Any) -> tuple[Tensor, ...]:
    """The gradients of `soft_attention_reference(*inputs, *options)` for q, the bottleneck tokens and v.

    For what gradients by hand cannot do: with grad mode on, as in a backward that creates a graph, these can be
    differentiated again, and the incoming gradient may be a batch of them.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad(), full_precision(grad):
        inputs = tuple(x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in inputs)
        x = soft_attention_reference(*map(at_least_float32, inputs), *options)
        return torch.autograd.grad(x, inputs, grad.to(x.dtype), create_graph=create_graph)
