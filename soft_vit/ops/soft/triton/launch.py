"""The passes of the operator one after the other, and the tensors between them."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from soft_vit.ops.soft.triton import solve_large
from soft_vit.ops.soft.triton.layout import empty
from soft_vit.ops.soft.triton.plan import form, plan_backward, plan_forward, plan_newton_inverse


def on_device(x: Tensor) -> AbstractContextManager:
    """Triton launches on the current device, which need not be that of x."""
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return nullcontext()


def forward(
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    residual: Tensor | None,
    inverse: str,
    normalize: bool,
    iters: int,
    ridge: float,
    start: str,
    layout: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x, y, W and, normalised, z and s: see `soft_vit.ops.soft.triton.op.forward`."""
    options = (inverse, normalize, iters, ridge, start)
    added = None if residual is None else form(residual)
    plan = plan_forward(q.device, form(q), form(bottleneck), form(v), added, *options, layout)
    x = empty(v.shape, layout, v)
    with on_device(q):
        partial = q.new_empty(plan.partial, dtype=torch.float32)
        w, scale = partial.new_empty(plan.w), partial.new_empty(plan.scale)
        plan.sums(q, bottleneck, v, partial, w, scale)
        if plan.solve is None:
            y, w, z, scale = solve_large.forward(bottleneck, partial, *options)
        else:
            y, z = partial.new_empty(plan.y), partial.new_empty(plan.z)
            plan.solve(partial, y, w, z, scale)
        plan.outputs(q, bottleneck, y, scale, x if residual is None else residual, x)
    return x, y, w, z, scale


def backward(
    grad: Tensor,
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    y: Tensor,
    w: Tensor,
    z: Tensor,
    scale: Tensor,
    inverse: str,
    normalize: bool,
    q_layout: str,
    v_layout: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, the bottleneck tokens and v."""
    forms = (form(grad), form(q), form(bottleneck), form(v))
    plan = plan_backward(q.device, *forms, inverse, normalize, q_layout, v_layout)
    grad_q, grad_v = empty(q.shape, q_layout, q), empty(v.shape, v_layout, v)
    with on_device(q):
        partial, parts = y.new_empty(plan.partial), y.new_empty(plan.parts)
        nothing = y.new_empty(0)
        plan.sums(q, bottleneck, grad, partial, nothing, nothing)
        of_kernel = parts[:, -1]
        if plan.solve is None:
            grad_z = solve_large.backward(bottleneck, partial, y, w, z, scale, of_kernel, inverse, normalize)
        else:
            grad_z = torch.empty_like(y)
            plan.solve(bottleneck, partial, y, w, z, scale, grad_z, of_kernel)
        for gradients in plan.gradients:
            gradients(q, bottleneck, v, grad, y, scale, grad_z, grad_q, grad_v, parts)
        grad_bottleneck = parts.sum(1).to(bottleneck.dtype).view(bottleneck.shape)
    return grad_q, grad_bottleneck, grad_v


def newton_inverse(a: Tensor, iters: int, ridge: float, start: str) -> Tensor:
    """See `soft_vit.ops.soft.triton.newton_op.forward`."""
    inverse = a.new_empty(a.shape)
    with on_device(a):
        plan_newton_inverse(a.device, form(a), iters, ridge, start)(a, inverse)
    return inverse
