"""The operators `soft_vit::soft_attention` and its backward, as PyTorch sees them.

Custom operators with fakes and a registered gradient: torch.compile, torch.export and autocast carry them as one node.
Kernels, and Triton with them, are imported at the first call, so that this file needs PyTorch only.
"""

import torch
from torch import Tensor

from soft_vit.ops.modes import are_dispatched
from soft_vit.ops.soft.reference import gradients_by_autograd
from soft_vit.ops.soft.triton.layout import empty, layout_of


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
    """The result `[B, H, N, Dv]`, and for backward on P = B * H problems y, W, z and s.

    `y = W z` `[P, M, Dv]`, W `[P, M, M]` (or the Cholesky factor) and, normalised, `z = s K1^T v` `[P, M, Dv]` and
    s `[P, M]`, otherwise both empty.

    Layouts are arguments, so that the strides of results do not depend on strides that a compiler may change.
    """
    from soft_vit.ops.soft.triton import launch

    return launch.forward(q, bottleneck, v, residual, inverse, normalize, iters, ridge, start, v_layout)


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
    """The gradients of q, the bottleneck tokens and v."""
    from soft_vit.ops.soft.triton import launch

    return launch.backward(grad, q, bottleneck, v, y, w, z, scale, inverse, normalize, q_layout, v_layout)


@backward.register_fake
def _(grad, q, bottleneck, v, y, w, z, scale, inverse, normalize, q_layout, v_layout):
    return empty(q.shape, q_layout, q), empty(bottleneck.shape, "heads", bottleneck), empty(v.shape, v_layout, v)


def _setup_context(ctx, inputs, output) -> None:
    q, bottleneck, v, residual, inverse, normalize, _, _, _, q_layout, v_layout = inputs
    ctx.save_for_backward(q, bottleneck, v, *output[1:])
    ctx.options = (inverse, normalize, q_layout, v_layout)
    ctx.residual_dtype = None if residual is None else residual.dtype


def _backward(ctx, grad: Tensor, *_) -> tuple[Tensor | None, ...]:
    return _of_inputs(ctx, grad, backward(grad, *ctx.saved_tensors, *ctx.options))


def _of_inputs(ctx, grad: Tensor, gradients: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    grad_residual = None if ctx.residual_dtype is None else grad.to(ctx.residual_dtype)
    return *gradients, grad_residual, None, None, None, None, None, None, None


forward.register_autograd(_backward, setup_context=_setup_context)


class _Direct(torch.autograd.Function):
    """The same without the dispatcher, whose way through Python takes as long as the kernels of a small case."""

    @staticmethod
    def forward(ctx, *inputs) -> Tensor:
        from soft_vit.ops.soft.triton import launch

        *arguments, _, v_layout = inputs
        output = launch.forward(*arguments, v_layout)
        _setup_context(ctx, inputs, output)
        ctx.variant = inputs[4:9]
        return output[0]

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return _of_inputs(ctx, grad, gradients_by_autograd(ctx.saved_tensors[:3], grad, *ctx.variant))
        from soft_vit.ops.soft.triton import launch

        # Others may look on than at the forward.
        function = backward if are_dispatched(grad) else launch.backward
        return _of_inputs(ctx, grad, function(grad, *ctx.saved_tensors, *ctx.options))


def fused_soft_attention(
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    residual: Tensor | None,
    inverse: str,
    normalize: bool,
    iters: int,
    ridge: float,
    start: str,
) -> Tensor:
    """`soft_vit.ops.soft_attention` in Triton, for arguments that `support.unsupported` has nothing against."""
    inputs = (q, bottleneck, v, residual, inverse, normalize, iters, float(ridge), start, layout_of(q), layout_of(v))
    if are_dispatched(q, bottleneck, v, residual):
        return forward(*inputs)[0]
    return _Direct.apply(*inputs)
