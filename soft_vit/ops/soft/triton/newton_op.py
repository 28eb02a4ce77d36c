"""The operator `soft_vit::newton_inverse`, as PyTorch sees it; built like `op.py`."""

import torch
from torch import Tensor

from soft_vit.ops.numerics import full_precision_backward


@torch.library.custom_op("soft_vit::newton_inverse", mutates_args=())
def forward(a: Tensor, iters: int, ridge: float, start: str) -> Tensor:
    """V_T `[P, M, M]`, contiguous, of a `[P, M, M]` in fp32 and of any strides."""
    from soft_vit.ops.soft.triton import launch

    return launch.newton_inverse(a, iters, ridge, start)


@forward.register_fake
def _(a, iters, ridge, start):
    return a.new_empty(a.shape)


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(output)


def _backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
    (v,) = ctx.saved_tensors
    with full_precision_backward(v):
        return -(v.mT @ grad @ v.mT), None, None, None


forward.register_autograd(_backward, setup_context=_setup_context)


def fused_newton_inverse(a: Tensor, iters: int, ridge: float, start: str) -> Tensor:
    """`soft_vit.ops.newton_inverse` in Triton, for arguments that `support.unsupported_inverse` has nothing against."""
    return forward(a.reshape(-1, *a.shape[-2:]), iters, float(ridge), start).view(a.shape)
