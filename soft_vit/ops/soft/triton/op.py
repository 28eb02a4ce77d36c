"""The operators `soft_vit::soft_attention` and `soft_vit::soft_attention_backward`, as PyTorch sees them.

Custom operators with fakes, registered gradients and FLOP counts: torch.compile, torch.export and autocast carry each
as one node. Kernels, and Triton with them, are imported at the first call, so this file needs PyTorch only.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from soft_vit.ops.numerics import is_eager
from soft_vit.ops.soft.options import InverseOptions
from soft_vit.ops.soft.reference import gradients_by_autograd
from soft_vit.ops.soft.triton.layouts import Shape, empty, layout_of


@torch.library.custom_op("soft_vit::soft_attention", mutates_args=())
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
    q_layout: str,
    v_layout: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the result `[B, H, N, Dv]` and what backward needs of P = B * H problems: y, W, z and s.

    `y = W z` `[P, M, Dv]`; W `[P, M, M]` is the inverse or the Cholesky factor. If normalised, `z = s K1^T v`
    `[P, M, Dv]` and s `[P, M]`; otherwise both are empty.

    Layouts are arguments because the strides of results must not depend on strides that a compiler may change.
    """
    from soft_vit.ops.soft.triton import launch

    options = InverseOptions(inverse, normalize, iters, ridge, start)  # type: ignore[arg-type]  # operators take strings
    return launch.forward(q, bottleneck, v, residual, options, v_layout)


@forward.register_fake
def _(q, bottleneck, v, residual, inverse, normalize, iters, ridge, start, q_layout, v_layout):
    problems, m = q.shape[0] * q.shape[1], bottleneck.shape[2]
    y = q.new_empty((problems, m, v.shape[3]), dtype=torch.float32)
    w = y.new_empty((problems, m, m))
    z, scale = (torch.empty_like(y), y.new_empty((problems, m))) if normalize else (y.new_empty(0), y.new_empty(0))
    return empty(v.shape, v_layout, v), y, w, z, scale


@torch.library.custom_op("soft_vit::soft_attention_backward", mutates_args=())
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
    from soft_vit.ops.soft.triton import launch

    return launch.backward(grad, q, bottleneck, v, y, w, z, scale, inverse, normalize, q_layout, v_layout)


@backward.register_fake
def _(grad, q, bottleneck, v, y, w, z, scale, inverse, normalize, q_layout, v_layout):
    return empty(q.shape, q_layout, q), empty(bottleneck.shape, "heads", bottleneck), empty(v.shape, v_layout, v)


def _setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    q, bottleneck, v, residual, inverse, normalize, _, _, _, q_layout, v_layout = inputs
    ctx.save_for_backward(q, bottleneck, v, *output[1:])
    ctx.options = (inverse, normalize, q_layout, v_layout)
    ctx.residual_dtype = None if residual is None else residual.dtype


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    return _of_inputs(ctx, grad, backward(grad, *ctx.saved_tensors, *ctx.options))


def _of_inputs(ctx: Any, grad: Tensor, gradients: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    grad_residual = None if ctx.residual_dtype is None else grad.to(ctx.residual_dtype)
    return *gradients, grad_residual, None, None, None, None, None, None, None


forward.register_autograd(_backward, setup_context=_setup_context)


class _Direct(torch.autograd.Function):
    """The operator without PyTorch's dispatcher, whose Python code takes as long as the kernels of a small case."""

    @staticmethod
    def forward(ctx: Any, options: InverseOptions, *inputs: Any) -> Tensor:
        from soft_vit.ops.soft.triton import launch

        q, bottleneck, v, residual, *_, layout = inputs
        output = launch.forward(q, bottleneck, v, residual, options, layout)
        _setup_context(ctx, inputs, output)
        ctx.inverse = options
        return output[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return None, *_of_inputs(ctx, grad, gradients_by_autograd(ctx.saved_tensors[:3], grad, ctx.inverse))
        from soft_vit.ops.soft.triton import launch

        # A mode such as a FLOP counter may be active in backward and not in forward.
        function = launch.backward if is_eager(grad) else backward
        return None, *_of_inputs(ctx, grad, function(grad, *ctx.saved_tensors, *ctx.options))


def fused_soft_attention(
    q: Tensor, bottleneck: Tensor, v: Tensor, residual: Tensor | None, options: InverseOptions
) -> Tensor:
    """Compute `soft_vit.ops.soft_attention` in Triton, for cases where `support.unsupported` returns None."""
    flat = (options.inverse, options.normalize, options.newton_iters, float(options.ridge), options.newton_start)
    inputs = (q, bottleneck, v, residual, *flat, layout_of(q), layout_of(v))
    if is_eager(q, bottleneck, v, residual):
        return _Direct.apply(options, *inputs)
    return forward(*inputs)[0]


# FLOPs for `torch.utils.flop_counter`: those of the products in the eager form.


@register_flop_formula(torch.ops.soft_vit.soft_attention)
def forward_flops(
    q: Shape,
    bottleneck: Shape,
    v: Shape,
    residual: Shape | None,
    inverse: str,
    normalize: bool,
    iters: int,
    *_: Any,
    **__: Any,
) -> int:
    """Count K1, `K1^T V` and `K1 y`; A, its inverse and `y = W z`."""
    problems, (n, d), m, dv = q[0] * q[1], q[2:], bottleneck[2], v[3]
    of_inverse = 2 * iters * m**3 if inverse == "newton" else m**3 // 6
    return 2 * problems * (n * m * (d + 2 * dv) + m * m * (d + dv) + of_inverse)


@register_flop_formula(torch.ops.soft_vit.soft_attention_backward)
def backward_flops(grad: Shape, q: Shape, bottleneck: Shape, v: Shape, *_: Any, **__: Any) -> int:
    """Count K1, `K1^T dX` and the gradients of v, K1 (two products), q and the bottleneck tokens; then those of A."""
    problems, (n, d), m, dv = q[0] * q[1], q[2:], bottleneck[2], v[3]
    return 2 * problems * (n * m * (3 * d + 4 * dv) + m * m * (3 * d + 2 * dv))
