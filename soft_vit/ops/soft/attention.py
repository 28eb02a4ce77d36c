"""The softmax-free attention operator (SOFT, arXiv 2110.11945, Eq. 8-10; normalised form: arXiv 2207.03341).

`X = K1 A^+ (K1^T V)` with `K1 = exp(-||q - l||^2 / 2)` [N, M] and `A = exp(-||l - l||^2 / 2)` [M, M]; the normalised
form has `D A^+ D` in the place of `A^+`, `D = diag(rowsum(A))^(-1/2)`.

Letters: B batch, H heads, N tokens, M bottleneck tokens, D channels of a head.
"""

import torch
from torch import Tensor

from soft_vit.ops.choices import Backend, check_choice, takes_triton
from soft_vit.ops.modes import in_function_transform, is_dual
from soft_vit.ops.numerics import at_least_float32, full_precision
from soft_vit.ops.soft.blocked import BlockedAttention
from soft_vit.ops.soft.cholesky import check_ridge
from soft_vit.ops.soft.inverse import NEWTON_GRADIENTS, NewtonGradient
from soft_vit.ops.soft.newton import NEWTON_STARTS, NewtonStart
from soft_vit.ops.soft.reference import Inverse, soft_attention_reference
from soft_vit.ops.soft.triton.op import fused_soft_attention
from soft_vit.ops.soft.triton.support import unsupported

INVERSES = ("newton", "cholesky", "eigh")


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
    result `[B, H, N, Dv]` has v's dtype. Everything inside is at least fp32, also under autocast; eager products on a
    GPU are TF32 where the user has switched that on for all (`torch.backends.cuda.matmul`), which flat kernels lose.

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
    if inverse == "cholesky":
        check_ridge(ridge)
    lacking = unsupported(q, bottleneck, v, residual, inverse, start, gradient)
    if takes_triton(backend, q.device.type, lacking):
        return fused_soft_attention(q, bottleneck, v, residual, inverse, normalize, iters, ridge, start)
    with full_precision(q):
        dtype = v.dtype
        q, bottleneck, v = at_least_float32(q), at_least_float32(bottleneck), at_least_float32(v)
        # A trace that holds an autograd.Function cannot be saved; torch.func and forward mode cannot see into one.
        traced = torch.jit.is_tracing() or in_function_transform() or any(map(is_dual, (q, bottleneck, v)))
        if inverse == "eigh" or (inverse == "newton" and gradient == "unrolled") or traced:
            x = soft_attention_reference(q, bottleneck, v, inverse, normalize, iters, ridge, start, gradient)
        else:
            problems = (q.flatten(0, 1), bottleneck.flatten(0, 1), v.flatten(0, 1))
            x = BlockedAttention.apply(*problems, inverse, normalize, iters, ridge, start).mT.unflatten(0, q.shape[:2])
        return x.to(dtype) if residual is None else (x + residual).to(dtype)
