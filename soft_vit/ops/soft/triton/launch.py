"""Run the operator's passes one after the other and allocate the tensors between them."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from soft_vit.ops.numerics import full_precision_backward
from soft_vit.ops.soft.blocked import apply_inverse, gradient_through_a, invert
from soft_vit.ops.soft.options import InverseOptions
from soft_vit.ops.soft.triton.layouts import empty
from soft_vit.ops.soft.triton.plan import form, plan_backward, plan_forward


def on_device(x: Tensor) -> AbstractContextManager:
    """Return a context in which Triton launches on the device of x, which may not be the current device."""
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return nullcontext()


def forward(
    q: Tensor, bottleneck: Tensor, v: Tensor, residual: Tensor | None, options: InverseOptions, layout: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return x, y, W, z and s; see `soft_vit.ops.soft.triton.op.forward`."""
    added = None if residual is None else form(residual)
    plan = plan_forward(q.device, form(q), form(bottleneck), form(v), added, options, layout)
    x = empty(v.shape, layout, v)
    with on_device(q):
        partial = q.new_empty(plan.partial, dtype=torch.float32)
        w, scale = partial.new_empty(plan.w), partial.new_empty(plan.scale)
        step_size = partial.new_empty(q.shape[0] if plan.step_size else 0)
        if plan.step_size is not None:
            plan.step_size(bottleneck, step_size)
        plan.sums(q, bottleneck, v, partial, w, scale, step_size)
        if plan.solve is None:
            y, w, z, scale = solve_large(bottleneck, partial, options)
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
    """Return the gradients of q, the bottleneck tokens and v."""
    forms = (form(grad), form(q), form(bottleneck), form(v))
    plan = plan_backward(q.device, *forms, inverse, normalize, q_layout, v_layout)
    grad_q, grad_v = empty(q.shape, q_layout, q), empty(v.shape, v_layout, v)
    with on_device(q):
        partial, parts = y.new_empty(plan.partial), y.new_empty(plan.parts)
        nothing = y.new_empty(0)
        plan.sums(q, bottleneck, grad, partial, nothing, nothing, nothing)
        of_kernel = parts[:, -1]
        if plan.solve is None:
            grad_z = solve_large_backward(bottleneck, partial, y, w, z, scale, of_kernel, inverse, normalize)
        else:
            grad_z = torch.empty_like(y)
            plan.solve(bottleneck, partial, y, w, z, scale, grad_z, of_kernel)
        for gradients in plan.gradients:
            gradients(q, bottleneck, v, grad, y, scale, grad_z, grad_q, grad_v, parts)
        grad_bottleneck = parts.sum(1).to(bottleneck.dtype).view(bottleneck.shape)
    return grad_q, grad_bottleneck, grad_v


def solve_large(bottleneck: Tensor, partial: Tensor, options: InverseOptions) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, W, z and s of `op.forward` from the sums of chunks `[P, chunks, M, Dv]`.

    Uses batched products, for more bottleneck tokens than fit on chip (see `tiling.MAX_ON_CHIP`).
    """
    with full_precision_backward(partial):
        z = partial.sum(1)
        w, scale = invert(bottleneck, options)
        nothing = z.new_empty(0)
        if scale is None:
            return apply_inverse(options.inverse, w, z).contiguous(), w.contiguous(), nothing, nothing
        z = z * scale
        return apply_inverse(options.inverse, w, z).contiguous(), w.contiguous(), z, scale[..., 0]


def solve_large_backward(
    bottleneck: Tensor,
    partial: Tensor,
    y: Tensor,
    w: Tensor,
    z: Tensor,
    scale: Tensor,
    grad_tokens: Tensor,
    inverse: str,
    normalize: bool,
) -> Tensor:
    """Return the gradient of `K1^T v`; write that of the bottleneck tokens through A to grad_tokens `[P, M, D]`."""
    with full_precision_backward(partial):
        grad_scaled, factor = partial.sum(1), scale[..., None] if normalize else None
        grad_y = grad_scaled if factor is None else grad_scaled * factor
        grad_z = apply_inverse(inverse, w, grad_y)
        tokens = bottleneck.flatten(0, 1).float()
        grad_tokens.copy_(gradient_through_a(tokens, y, grad_scaled, grad_z, z, factor))
        return (grad_z if factor is None else grad_z * factor).contiguous()
