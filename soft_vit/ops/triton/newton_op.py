"""The operator `soft_vit::newton_inverse` and its backward, as PyTorch sees them; built like `op.py`."""

import torch
from torch import Tensor

from soft_vit.ops.precision import full_precision_backward


@torch.library.custom_op("soft_vit::newton_inverse", mutates_args=())
def forward(a: Tensor, iters: int, ridge: float, start: str) -> Tensor:
    """V_T `[P, M, M]`, contiguous, of a `[P, M, M]` in fp32 and of any strides."""
    from soft_vit.ops.triton import launch

    return launch.newton_inverse(a, iters, ridge, start)


@forward.register_fake
def _(a, iters, ridge, start):
    return a.new_empty(a.shape)


@torch.library.custom_op("soft_vit::newton_inverse_backward", mutates_args=())
def backward(grad: Tensor, v: Tensor) -> Tensor:
    """`-V^T G V^T`. An operator, so that a second derivative is refused as it is by the eager form."""
    with full_precision_backward(v):
        return torch.bmm(torch.bmm(v.mT, grad), v.mT).neg_()


@backward.register_fake
def _(grad, v):
    return v.new_empty(v.shape)


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(output)


def _backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return backward(grad, *ctx.saved_tensors), None, None, None


forward.register_autograd(_backward, setup_context=_setup_context)


def fused_newton_inverse(a: Tensor, iters: int, ridge: float, start: str) -> Tensor:
    """`soft_vit.ops.newton_inverse` in Triton, for arguments that `support.no_newton_inverse` has nothing against."""
    return forward(a.reshape(-1, *a.shape[-2:]), iters, float(ridge), start).view(a.shape)
