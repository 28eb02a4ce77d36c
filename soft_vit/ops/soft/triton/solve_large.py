"""The m x m part as batched products, for more bottleneck tokens than fit on chip (see `tiling.MAX_ON_CHIP`)."""

import torch
from torch import Tensor

from soft_vit.ops.gaussian import self_gaussian_kernel
from soft_vit.ops.numerics import full_precision_backward
from soft_vit.ops.soft.cholesky import cholesky_factor, solve_factored
from soft_vit.ops.soft.newton import add_ridge, newton_iterate, newton_step_size


def forward(
    bottleneck: Tensor,
    partial: Tensor,
    inverse: str,
    normalize: bool,
    iters: int,
    ridge: float,
    start: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns y `[P, M, Dv]`, W `[P, M, M]`, z and s (or empty) from the sums of chunks `[P, chunks, M, Dv]`."""
    with full_precision_backward(partial):
        z = partial.sum(1)
        a = self_gaussian_kernel(bottleneck.flatten(0, 1))
        p = add_ridge(a, ridge)
        scale = a.sum(2).rsqrt() if normalize else z.new_empty(0)
        if normalize:
            z = z * scale[..., None]
        if inverse == "cholesky":
            w = cholesky_factor(p)
            y = solve_factored(w, z).contiguous()
        else:
            w = newton_iterate(p, newton_step_size(a, ridge, start) * p, iters)
            y = torch.bmm(w, z)
        return y, w.contiguous(), z if normalize else z.new_empty(0), scale


def backward(
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
    """The gradient of `K1^T v`; fills grad_tokens `[P, M, D]` with what A adds to that of the bottleneck tokens."""
    with full_precision_backward(partial):
        tokens = bottleneck.flatten(0, 1).float()
        a = self_gaussian_kernel(tokens)
        grad_scaled = partial.sum(1)
        grad_y = grad_scaled * scale[..., None] if normalize else grad_scaled
        grad_z = solve_factored(w, grad_y) if inverse == "cholesky" else torch.bmm(w, grad_y)
        grad_a = torch.bmm(grad_z, y.mT).neg_()
        if normalize:
            grad_scale = (grad_scaled * y).sum(2) + (grad_z * z).sum(2) / scale
            grad_a -= (0.5 * grad_scale * scale.pow(3))[..., None]
            grad_z = grad_z * scale[..., None]
        # Each token is a row and a column of A; the diagonal is constant.
        weight = grad_a.mul_(a)
        weight = weight + weight.mT
        weight.diagonal(dim1=1, dim2=2).zero_()
        grad_tokens.copy_(torch.bmm(weight, tokens) - tokens * weight.sum(2, keepdim=True))
        return grad_z.contiguous()
