"""The softmax-free attention operator (SOFT, arXiv 2110.11945, Eq. 8-10; normalised form: arXiv 2207.03341).

`X = K1 A^+ (K1^T V)` with `K1 = exp(-||q - l||^2 / 2)` [N, M] and `A = exp(-||l - l||^2 / 2)` [M, M]; the normalised
form has `D A^+ D` in the place of `A^+`, `D = diag(rowsum(A))^(-1/2)`.

Letters: B batch, H heads, N tokens, M bottleneck tokens, D channels of a head.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from soft_vit.ops.choices import check_choice
from soft_vit.ops.gaussian import gaussian_kernel, self_gaussian_kernel
from soft_vit.ops.inverse import (
    NEWTON_GRADIENTS,
    NEWTON_STARTS,
    NewtonGradient,
    NewtonStart,
    add_ridge,
    cholesky_solve,
    eigh_inverse,
    newton_inverse,
    newton_iterate,
    newton_step_size,
)
from soft_vit.ops.precision import at_least_float32, full_precision, full_precision_backward
from soft_vit.ops.triton.op import fused_soft_attention
from soft_vit.ops.triton.support import unsupported

Backend = Literal["eager", "triton"]
Inverse = Literal["newton", "cholesky", "eigh"]

BACKENDS = ("eager", "triton")
INVERSES = ("newton", "cholesky", "eigh")

# Half of the second-level cache of a core, which is 1 to 2 MiB on servers.
_CACHED_BYTES = 1 << 19


def soft_attention(
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    inverse: Inverse = "newton",
    normalize: bool = False,
    iters: int = 20,
    ridge: float = 0.01,
    start: NewtonStart = "rowsum",
    gradient: NewtonGradient = "closed_form",
    residual: Tensor | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Softmax-free attention of q (which is also the key) and v through M bottleneck tokens, linear in N.

    q: `[B, H, N, D]`, already scaled by `D^(-1/4)`; bottleneck: `[B, H, M, D]`; v: `[B, H, N, Dv]`; any strides. The
    result `[B, H, N, Dv]` has v's dtype. Everything inside is at least fp32, also under autocast.

    inverse: `newton` (`iters` steps from `start`, see `newton_inverse`), `cholesky` (a solve, for training from
    scratch) or `eigh` (the oracle for tests). ridge is added to A before it is inverted.
    residual: `[B, H, N, Dv]`, added to the result before it is rounded.
    backend: `triton` are fused kernels, `eager` anything else; None takes `triton` on a GPU where it has the case, and
    never on a CPU. ValueError where `triton` is asked for and does not have it.

    Backward stores q, the bottleneck tokens, v and what is m x m or m x Dv; the N x M kernel is computed again.
    """
    check_choice("inverse", inverse, INVERSES)
    check_choice("start", start, NEWTON_STARTS)
    check_choice("gradient", gradient, NEWTON_GRADIENTS)
    if _use_triton(backend, q, bottleneck, v, residual, inverse, start, gradient):
        return fused_soft_attention(q, bottleneck, v, residual, inverse, normalize, iters, ridge, start)
    with full_precision(q):
        dtype = v.dtype
        q, bottleneck, v = at_least_float32(q), at_least_float32(bottleneck), at_least_float32(v)
        # A trace that holds an autograd.Function cannot be saved.
        if inverse == "eigh" or (inverse == "newton" and gradient == "unrolled") or torch.jit.is_tracing():
            x = soft_attention_reference(q, bottleneck, v, inverse, normalize, iters, ridge, start, gradient)
        else:
            problems = (q.flatten(0, 1), bottleneck.flatten(0, 1), v.flatten(0, 1))
            x = _SoftAttention.apply(*problems, inverse, normalize, iters, ridge, start).unflatten(0, q.shape[:2])
        return x.to(dtype) if residual is None else (x + residual).to(dtype)


def _use_triton(backend: Backend | None, q: Tensor, *case: Tensor | str | None) -> bool:
    """Whether the fused kernels serve this case of `soft_attention`."""
    if backend is None:
        return q.device.type == "cuda" and unsupported(q, *case) is None
    if check_choice("backend", backend, BACKENDS) == "triton" and (reason := unsupported(q, *case)):
        raise ValueError(f"backend='triton' {reason}; use backend='eager', or None to choose by the case.")
    return backend == "triton"


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
        y = newton_inverse(a, iters, ridge, start, gradient) @ (scale * z)
    return k1 @ (scale * y)


def _kernel_and_product(a: Tensor, b: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """`K = exp(-||a_i - b_j||^2 / 2)` `[P, I, J]` of a `[P, I, D]` and b transposed `[P, D, J]`, and `K v` `[P, I, E]`.

    On a CPU some problems at a time, so that what is written of the kernel is still in cache when it is read.
    """
    parts = _parts(a, b)
    if len(parts) == 1:
        kernel = _exp_of_products(a, b)
        return kernel, torch.bmm(kernel, v)
    kernel, product = a.new_empty(*a.shape[:2], b.shape[2]), a.new_empty(*a.shape[:2], v.shape[2])
    for part in parts:
        _exp_of_products(a[part], b[part], kernel[part])
        torch.bmm(kernel[part], v[part], out=product[part])
    return kernel, product


def _parts(a: Tensor, b: Tensor) -> list[slice]:
    """Ranges of problems, of P with a `[P, I, D]` and b transposed `[P, D, J]`, whose kernels fit into a cache.

    One on a GPU, and where a graph is captured that other sizes will run.
    """
    count, kernel_bytes = a.shape[0], a.shape[1] * b.shape[2] * a.element_size()
    if a.device.type != "cpu" or torch.compiler.is_compiling() or count * kernel_bytes <= _CACHED_BYTES:
        return [slice(0, count)]
    size = max(1, _CACHED_BYTES // kernel_bytes) * torch.get_num_threads()
    return [slice(start, start + size) for start in range(0, count, size)]


def _exp_of_products(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """`exp(-||a_i - b_j||^2 / 2)` of a `[P, I, D]` and b transposed `[P, D, J]`, in one buffer, `[P, I, J]`."""
    column = b.square().sum(1, keepdim=True)
    exponent = torch.baddbmm(column, a, b, beta=-0.5, out=out)
    return exponent.sub_(a.square().sum(2, keepdim=True), alpha=0.5).clamp_(max=0).exp_()


def _kernel_backward(grad_times_kernel: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `exp(-||a_i - b_j||^2 / 2)` for a `[P, I, D]` and b transposed `[P, D, J]`."""
    s = grad_times_kernel
    grad_a = torch.bmm(s, b.mT).sub_(a * s.sum(2, keepdim=True))
    grad_b = torch.bmm(a.mT, s).sub_(b * s.sum(1, keepdim=True))
    return grad_a, grad_b


class _SoftAttention(torch.autograd.Function):
    """The operator on `P = B * H` problems, with the N x M kernel held transposed, `[P, M, N]`, and never stored.

    Transposed, q and v may lie in memory as `[P, D, N]` (feature maps) or `[P, N, D]` without a copy, and rows of the
    kernel are long. `W` is the inverse as it acts, symmetric: `y' = W z'`, with `z' = s z`, `y = s y'` and
    `s = rowsum(A)^(-1/2)` or 1. Newton's closed-form gradient and the exact Cholesky gradient are both
    `dA = -(W dy') y'^T`.
    """

    @staticmethod
    def forward(
        ctx,
        q: Tensor,
        bottleneck: Tensor,
        v: Tensor,
        inverse: Inverse,
        normalize: bool,
        iters: int,
        ridge: float,
        start: NewtonStart,
    ) -> Tensor:
        kernel, z = _kernel_and_product(bottleneck, q.mT, v)
        a = self_gaussian_kernel(bottleneck)
        scale = a.sum(2, keepdim=True).rsqrt_() if normalize else None
        if scale is not None:
            z.mul_(scale)
        p = add_ridge(a, ridge)
        if inverse == "cholesky":
            w, _ = torch.linalg.cholesky_ex(p)
            y = torch.cholesky_solve(z, w)
        else:
            w = newton_iterate(p, newton_step_size(a, ridge, start) * p, iters)
            y = torch.bmm(w, z)
        scaled_y = y if scale is None else y * scale
        ctx.save_for_backward(q, bottleneck, v, y, w, *(() if scale is None else (z, scale)))
        ctx.inverse = inverse
        return torch.bmm(scaled_y.mT, kernel).mT

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        with full_precision_backward(grad):
            return _SoftAttention._backward(ctx, grad)

    @staticmethod
    def _backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        # torch.compile of torch 2.4 hands saved tensors over in the order of their first use, so that is made theirs.
        saved = [tensor.view_as(tensor) for tensor in ctx.saved_tensors]
        q, bottleneck, v = saved[:3]
        parts = _parts(bottleneck, q.mT)
        if len(parts) == 1:
            gradients = _gradients(ctx.inverse, grad, *saved)
        else:
            gradients = tuple(t.new_empty(t.shape) for t in (q.mT, bottleneck, v.mT))
            for part in parts:
                found = _gradients(ctx.inverse, grad[part], *(tensor[part] for tensor in saved))
                for whole, one in zip(gradients, found, strict=True):
                    whole[part] = one
        grad_q, grad_bottleneck, grad_v = gradients
        return grad_q.mT, grad_bottleneck, grad_v.mT, None, None, None, None, None


def _gradients(
    inverse: Inverse,
    grad: Tensor,
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    y: Tensor,
    w: Tensor,
    z: Tensor | None = None,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q `[P, D, N]`, the bottleneck tokens `[P, M, D]` and v `[P, E, N]`; see `_SoftAttention`."""
    kernel = _exp_of_products(bottleneck, q.mT)
    a = self_gaussian_kernel(bottleneck)

    grad_scaled_y = torch.bmm(kernel, grad)
    grad_y = grad_scaled_y if scale is None else grad_scaled_y * scale
    grad_z = torch.cholesky_solve(grad_y, w) if inverse == "cholesky" else torch.bmm(w, grad_y)
    grad_a = torch.bmm(grad_z, y.mT).neg_()
    scaled_y, grad_scaled_z = y, grad_z
    if scale is not None:
        # z holds s z: the product rule of both scalings divides by s once, ds / drowsum = -s^3 / 2 cancels it.
        grad_scale = (grad_scaled_y * y).sum(2, keepdim=True) + (grad_z * z).sum(2, keepdim=True) / scale
        grad_a -= 0.5 * grad_scale * scale.pow(3)
        scaled_y, grad_scaled_z = y * scale, grad_z * scale

    grad_v = torch.bmm(grad_scaled_z.mT, kernel)
    grad_kernel = torch.bmm(scaled_y, grad.mT).baddbmm_(grad_scaled_z, v.mT).mul_(kernel)
    grad_bottleneck, grad_q = _kernel_backward(grad_kernel, bottleneck, q.mT)
    # The diagonal of A is constant, and its distance has no gradient.
    left, right = _kernel_backward(grad_a.mul_(a), bottleneck, bottleneck.mT)
    grad_bottleneck += left + right.mT
    return grad_q, grad_bottleneck, grad_v
