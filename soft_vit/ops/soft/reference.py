"""The operator as the papers write it, differentiated by autograd; letters as in `attention.py`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from soft_vit.ops.gaussian import gaussian_kernel, self_gaussian_kernel
from soft_vit.ops.numerics import at_least_float32, full_precision
from soft_vit.ops.soft.inverse import InverseOptions, cholesky_solve, eigh_inverse, newton_inverse


def soft_attention_reference(q: Tensor, bottleneck: Tensor, v: Tensor, **options: Any) -> Tensor:
    """`soft_attention` as the papers write it: what the fast form is tested against; options of `InverseOptions`."""
    return attend(q, bottleneck, v, InverseOptions(**options))


def attend(q: Tensor, bottleneck: Tensor, v: Tensor, options: InverseOptions) -> Tensor:
    """`K1 A^+ (K1^T v)`, normalised `K1 D A^+ D (K1^T v)`; shapes as in `soft_attention`."""
    k1 = gaussian_kernel(q, bottleneck)
    a = self_gaussian_kernel(bottleneck)
    z = k1.mT @ v
    scale = a.sum(-1, keepdim=True).rsqrt() if options.normalize else torch.ones_like(a[..., :1])
    if options.inverse == "cholesky":
        y = cholesky_solve(a, scale * z, options.ridge)
    elif options.inverse == "eigh":
        y = eigh_inverse(a, options.ridge) @ (scale * z)
    else:
        inverse = newton_inverse(a, options.iters, options.ridge, options.start, options.gradient, "eager")
        y = inverse @ (scale * z)
    return k1 @ (scale * y)


def gradients_by_autograd(inputs: Sequence[Tensor], grad: Tensor, options: InverseOptions) -> tuple[Tensor, ...]:
    """The gradients of `attend(*inputs, options)` for q, the bottleneck tokens and v.

    For what gradients by hand cannot do: with grad mode on, as in a backward that creates a graph, these can be
    differentiated again, and the incoming gradient may be a batch of them.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad(), full_precision(grad):
        inputs = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in inputs]
        q, bottleneck, v = map(at_least_float32, inputs)
        x = attend(q, bottleneck, v, options)
        return torch.autograd.grad(x, inputs, grad.to(x.dtype), create_graph=create_graph)
