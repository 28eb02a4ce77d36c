"""The softmax-free attention operator (SOFT, arXiv 2110.11945, Eq. 8-10; normalised form: arXiv 2207.03341).

`X = K1 A^+ (K1^T V)` with `K1 = exp(-||q - l||^2 / 2)` [N, M] and `A = exp(-||l - l||^2 / 2)` [M, M]; the normalised
form replaces `A^+` by `D A^+ D`, `D = diag(rowsum(A))^(-1/2)`.

Letters: B batch, H heads, N tokens, M bottleneck tokens, D channels of a head.
"""

from typing import get_args

import torch
from torch import Tensor

from soft_vit.ops.numerics import Backend, at_least_float32, check_choice, full_precision, in_transform, use_triton
from soft_vit.ops.soft import newton
from soft_vit.ops.soft.blocked import BlockedAttention
from soft_vit.ops.soft.options import Inverse, InverseOptions, NewtonGradient, NewtonStart
from soft_vit.ops.soft.reference import attend
from soft_vit.ops.soft.triton.op import fused_newton_inverse, fused_soft_attention
from soft_vit.ops.soft.triton.support import unsupported, unsupported_inverse


def soft_attention(
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    inverse: Inverse = "newton",
    normalize: bool = False,
    newton_iters: int = 20,
    ridge: float = 0.01,
    newton_start: NewtonStart = "rowsum",
    newton_gradient: NewtonGradient = "closed_form",
    residual: Tensor | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Softmax-free attention of q (which is also the key) and v through M bottleneck tokens, linear in N.

    q: `[B, H, N, D]`, already scaled by `D^(-1/4)`; bottleneck: `[B, H, M, D]`; v: `[B, H, N, Dv]`; any strides. The
    result `[B, H, N, Dv]` has v's dtype. Everything inside is at least fp32, also under autocast; eager products on a
    GPU are TF32 where the user has switched that on for all (`torch.backends.cuda.matmul`), which flat kernels lose.

    inverse: `newton` (newton_iters steps from newton_start, see `newton_inverse`), `cholesky` (a solve, for training
    from scratch) or `eigh` (the oracle for tests). ridge is added to A before it is inverted.
    normalize: scale both sides of the inverse by D. newton_gradient: of the iteration, see `newton_inverse`.
    residual: `[B, H, N, Dv]`, added to the result before it is rounded.
    backend: `triton` are fused kernels, `eager` anything else; None takes `triton` on a GPU where it has the case, and
    never on a CPU. ValueError where `triton` is asked for and does not have the case.

    Backward stores q, the bottleneck tokens, v and tensors of m x m and m x Dv; the N x M kernel is computed again.
    """
    options = InverseOptions(inverse, normalize, newton_iters, ridge, newton_start, newton_gradient)
    return soft_attention_by(options, q, bottleneck, v, residual, backend)


def soft_attention_by(
    options: InverseOptions,
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    residual: Tensor | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Compute `soft_attention` with options that were checked before."""
    if use_triton(backend, q.device.type, unsupported(q, bottleneck, v, residual, options)):
        return fused_soft_attention(q, bottleneck, v, residual, options)
    with full_precision(q):
        dtype = v.dtype
        q, bottleneck, v = at_least_float32(q), at_least_float32(bottleneck), at_least_float32(v)
        unrolled = options.inverse == "newton" and options.newton_gradient == "unrolled"
        if options.inverse == "eigh" or unrolled or in_transform():
            x = attend(q, bottleneck, v, options)
        else:
            x = BlockedAttention.apply(q, bottleneck, v, options).mT.unflatten(0, q.shape[:2])
        return x.to(dtype) if residual is None else (x + residual).to(dtype)


def newton_inverse(
    a: Tensor,
    iters: int = 20,
    ridge: float = 0.01,
    start: NewtonStart = "rowsum",
    gradient: NewtonGradient = "closed_form",
    backend: Backend | None = None,
) -> Tensor:
    """Return `V_T`, the T-th Newton-Raphson iterate towards `(A + ridge I)^-1`.

    a: `[..., H, M, M]`, symmetric with positive entries, or one such matrix; the result has its shape, at least fp32.
    start: see `newton_step_size`; the H matrices are those of one image's heads.
    gradient: `closed_form` is the released backward, `-V^T G V^T`, which is exact where the iteration has converged and
    stores one matrix; `unrolled` is the true gradient of the truncated iteration, start included, and stores 2 T. Under
    the transforms of `torch.func` it is always the latter.
    backend: `triton` is one kernel for all steps of matrices up to 64 x 64, `eager` batched products; None takes
    `triton` on a GPU where it has the case. ValueError where `triton` is asked for and does not have the case.
    """
    check_choice("start", start, get_args(NewtonStart))
    check_choice("gradient", gradient, get_args(NewtonGradient))
    unrolled = gradient == "unrolled" and torch.is_grad_enabled() and a.requires_grad
    if not use_triton(backend, a.device.type, unsupported_inverse(a, unrolled)):
        return newton.newton_inverse(a, iters, ridge, start, gradient)
    with full_precision(a):
        a = at_least_float32(a)
        step_size = None if start == "rowsum" else newton.newton_step_size(a, ridge, start)
        return fused_newton_inverse(a, step_size, iters, ridge)
