"""The softmax-free attention operator (SOFT, arXiv 2110.11945, Eq. 8-10; normalised form: arXiv 2207.03341).

`X = K1 A^+ (K1^T V)` with `K1 = exp(-||q - l||^2 / 2)` [N, M] and `A = exp(-||l - l||^2 / 2)` [M, M]; the normalised
form replaces `A^+` by `D A^+ D`, `D = diag(rowsum(A))^(-1/2)`.

Letters: B batch, H heads, N tokens, M bottleneck tokens, D channels of a head.
"""

from typing import Any

import torch
from torch import Tensor

from soft_vit.ops.landmarks import Limit, average_tokens, grid_limit, isolate_missing
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least, at_least_float32, check_choice, full_precision, in_transform
from soft_vit.ops.soft.blocked import BlockedAttention
from soft_vit.ops.soft.options import BACKENDS, Backend, Inverse, InverseOptions, NewtonGradient, NewtonStart
from soft_vit.ops.soft.reference import attend
from soft_vit.ops.soft.triton.op import fused_soft_attention
from soft_vit.ops.soft.triton.support import unsupported, warn_of_eager_form


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
    """Return softmax-free attention of q (which is also the key) and v through M bottleneck tokens, linear in N.

    q: `[B, H, N, D]`, already scaled by `D^(-1/4)`; bottleneck: `[B, H, M, D]`; v: `[B, H, N, Dv]`; any strides. The
    result `[B, H, N, Dv]` has v's dtype. Everything inside is at least fp32, also under autocast. Do not switch on TF32
    for all products (`torch.backends.cuda.matmul`): the eager form on a GPU then uses it, too coarse for flat kernels.

    inverse: `newton` (newton_iters steps from newton_start, see `newton_inverse`), `cholesky` (a solve, for training
        from scratch) or `eigh` (an eigendecomposition, for tests).
    normalize: scale both sides of the inverse by D.
    ridge: added to the diagonal of A before it is inverted.
    newton_gradient: `closed_form` or `unrolled`, see `newton_inverse`.
    residual: `[B, H, N, Dv]`, added to the result before it is rounded.
    backend: `triton` for the fused kernels, `eager` for PyTorch's operations. None takes `triton` on a GPU if it
        supports the case, otherwise `eager`, with a warning on a GPU. ValueError for `triton` if it does not support
        the case.

    Backward stores q, the bottleneck tokens, v and tensors of M x M and M x Dv, and computes the N x M kernel again.
    """
    options = InverseOptions(inverse, normalize, newton_iters, ridge, newton_start, newton_gradient)
    return soft_attention_with_options(options, q, bottleneck, v, residual, backend)


def soft_attention_with_options(
    options: InverseOptions,
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    residual: Tensor | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Return `soft_attention` with options that were checked before."""
    if use_triton(backend, q.device.type, unsupported(q, bottleneck, v, residual, options)):
        return fused_soft_attention(q, bottleneck, v, residual, options)
    with full_precision(q):
        dtype = v.dtype
        q, bottleneck, v = at_least_float32(q), at_least_float32(bottleneck), at_least_float32(v)
        unrolled = options.inverse == "newton" and options.newton_gradient == "unrolled"
        # Exported graphs have the operators of the formula: few runtimes know those of the blocked form, such as exp2.
        if options.inverse == "eigh" or unrolled or in_transform() or torch.compiler.is_exporting():
            x = attend(q, bottleneck, v, options)
        else:
            x = BlockedAttention.apply(q, bottleneck, v, options).mT.unflatten(0, q.shape[:2])
        return x.to(dtype) if residual is None else (x + residual).to(dtype)


def use_triton(backend: Backend | None, device_type: str, unsupported: str | None) -> bool:
    """Return whether Triton computes a case. unsupported: the reason why it cannot, as the end of a sentence."""
    if backend is None:
        if device_type == "cuda" and unsupported is not None:
            warn_of_eager_form(unsupported)
        return device_type == "cuda" and unsupported is None
    if check_choice("backend", backend, BACKENDS) == "triton" and unsupported is not None:
        raise ValueError(f"backend must be None or 'eager', got 'triton', which {unsupported}.")
    return backend == "triton"


def averaged_soft_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, sr_ratio: int = 1, max_bottleneck: Limit = 7, **others: Any
) -> Tensor:
    """Return `soft_attention` of q over `D^(1/4)` through averages of it, the bottleneck tokens.

    k: q itself, or keys `[B, H, N, D]`, whose kernel to the bottleneck tokens then gathers the values v. sr_ratio: side
    of the window of a bottleneck token. max_bottleneck: the largest grid of them. others: of `InverseOptions`.
    """
    options, limit = InverseOptions(**others), grid_limit("max_bottleneck", max_bottleneck, layout.sequence)
    scale, same = q.shape[-1] ** -0.25, k is q
    q, v = q * scale, layout.zero_padded(v)
    maps = q.flatten(0, 1).mT[..., None]
    tokens, exist = average_tokens(maps, (at_least("sr_ratio", sr_ratio), 1), limit, layout)
    tokens = tokens.unflatten(0, q.shape[:2])
    if exist is not None:
        tokens = isolate_missing(tokens, exist)
    if same:
        return soft_attention_with_options(options, q, tokens, v)
    with full_precision(q):
        q, k, tokens, wide = (at_least_float32(x) for x in (q, k * scale, tokens, v))
        return attend(q, tokens, wide, options, k).to(v.dtype)
