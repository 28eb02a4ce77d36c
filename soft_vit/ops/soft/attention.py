"""The softmax-free attention operator (SOFT, arXiv 2110.11945, Eq. 8-10; normalised form: arXiv 2207.03341).

`X = K1 A^+ (K1^T V)` with `K1 = exp(-||q - l||^2 / 2)` [N, M] and `A = exp(-||l - l||^2 / 2)` [M, M]; the normalised
form replaces `A^+` by `D A^+ D`, `D = diag(rowsum(A))^(-1/2)`.

Letters: B batch, H heads, N tokens, M bottleneck tokens, D channels of a head.
"""

from torch import Tensor

from soft_vit.ops.numerics import (
    Backend,
    at_least_float32,
    forbids_autograd_function,
    full_precision,
    takes_triton,
)
from soft_vit.ops.soft.blocked import BlockedAttention
from soft_vit.ops.soft.inverse import Inverse, InverseOptions, NewtonGradient, NewtonStart
from soft_vit.ops.soft.reference import attend
from soft_vit.ops.soft.triton.op import fused_soft_attention
from soft_vit.ops.soft.triton.support import unsupported


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
    normalize: scale both sides of the inverse by D. gradient: of Newton's iteration, see `newton_inverse`.
    residual: `[B, H, N, Dv]`, added to the result before it is rounded.
    backend: `triton` are fused kernels, `eager` anything else; None takes `triton` on a GPU where it has the case, and
    never on a CPU. ValueError where `triton` is asked for and does not have it.

    Backward stores q, the bottleneck tokens, v and what is m x m or m x Dv; the N x M kernel is computed again.
    """
    options = InverseOptions(inverse, normalize, iters, ridge, start, gradient)
    if takes_triton(backend, q.device.type, unsupported(q, bottleneck, v, residual, options)):
        return fused_soft_attention(q, bottleneck, v, residual, options)
    with full_precision(q):
        dtype = v.dtype
        q, bottleneck, v = at_least_float32(q), at_least_float32(bottleneck), at_least_float32(v)
        unrolled = inverse == "newton" and gradient == "unrolled"
        if inverse == "eigh" or unrolled or forbids_autograd_function(q, bottleneck, v):
            x = attend(q, bottleneck, v, options)
        else:
            x = BlockedAttention.apply(q, bottleneck, v, options).mT.unflatten(0, q.shape[:2])
        return x.to(dtype) if residual is None else (x + residual).to(dtype)
