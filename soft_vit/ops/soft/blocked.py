"""The operator in batched products, with a backward written by hand, in blocks that fit in a CPU's cache.

Letters: P problems (B images times H heads), N tokens, M bottleneck tokens, D channels of q, E channels of v.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from soft_vit.ops.gaussian import self_gaussian_kernel
from soft_vit.ops.numerics import full_precision_backward
from soft_vit.ops.soft.cholesky import cholesky_factor, solve_factored
from soft_vit.ops.soft.newton import newton_iterates
from soft_vit.ops.soft.options import InverseOptions, add_ridge
from soft_vit.ops.soft.reference import gradients_by_autograd

LOG2_E = 1.4426950408889634

# The part of a core's L2 cache (1 to 2 MiB on servers) that a kernel may take; operands and results take the rest.
_CACHED_BYTES = 640 << 10
# The fewest tokens of a chunk: with fewer, calls cost more time than the cache saves.
_MIN_CHUNK = 1024


class BlockedAttention(torch.autograd.Function):
    """Compute `[P, E, N]`, with P = B * H, from q `[B, H, N, D]`, bottleneck `[B, H, M, D]` and v `[B, H, N, E]`.

    Kernels are stored transposed, `[P, M, N]`, so that q and v may lie in memory as `[P, D, N]` (feature maps) or
    `[P, N, D]` without a copy, and rows of the kernel are long. Backward computes them again.

    `y' = W z'` with the symmetric inverse W, `z' = s z`, `y = s y'` and `s = rowsum(A)^(-1/2)`, or 1 if not normalised.
    Newton's closed-form gradient and the exact Cholesky gradient are both `dA = -(W dy') y'^T`.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, bottleneck: Tensor, v: Tensor, options: InverseOptions) -> Tensor:
        inputs = (q, bottleneck, v)
        w, scale = invert(bottleneck, options)
        q, bottleneck, v = (x.flatten(0, 1) for x in inputs)
        blocks = _blocks(bottleneck, q)
        if len(blocks.problems) == len(blocks.chunks) == 1:
            x, y, z = _attend(options.inverse, q, bottleneck, v, w, scale)
        else:
            x = v.new_empty(v.mT.shape)
            y, z = (v.new_empty(*bottleneck.shape[:2], v.shape[2]) for _ in "yz")
            for part in blocks.problems:
                operands = (q[part], bottleneck[part], v[part], w[part], _part(scale, part))
                _, y[part], z[part] = _attend(options.inverse, *operands, blocks.chunks, x[part])
        ctx.save_for_backward(*inputs, y, w, *(() if scale is None else (z, scale)))
        ctx.options = options
        # The caller transposes x: it could not write to a view made here.
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with full_precision_backward(grad):
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return BlockedAttention._backward(ctx, grad.mT)
            inputs = ctx.saved_tensors[:3]
            # The gradient below cannot be differentiated again.
            return *gradients_by_autograd(inputs, grad.mT.unflatten(0, inputs[0].shape[:2]), ctx.options), None

    @staticmethod
    def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, bottleneck, v, y, w, *rest = ctx.saved_tensors
        z, scale = rest or (None, None)
        heads = q.shape[:2]
        q, bottleneck, v = (x.flatten(0, 1) for x in (q, bottleneck, v))
        inverse = ctx.options.inverse
        scaled_y = y if scale is None else y * scale
        blocks = _blocks(bottleneck, q)
        if len(blocks.problems) == len(blocks.chunks) == 1:
            operands = (grad, q, bottleneck, v, scaled_y, w, scale)
            grad_q, grad_bottleneck, grad_v, grad_scaled_y, grad_z = _gradients(inverse, *operands)
        else:
            # Laid out as their inputs: element-wise operations on two layouts take three times as long.
            grad_q, grad_v = torch.empty_like(q).mT, torch.empty_like(v).mT
            grad_bottleneck = bottleneck.new_empty(bottleneck.shape)
            grad_scaled_y, grad_z = torch.empty_like(y), torch.empty_like(y)
            for part in blocks.problems:
                operands = (grad[part], q[part], bottleneck[part], v[part], scaled_y[part], w[part], _part(scale, part))
                out = (grad_q[part], grad_bottleneck[part], grad_v[part])
                *_, grad_scaled_y[part], grad_z[part] = _gradients(inverse, *operands, blocks.chunks, out)
        grad_bottleneck += gradient_through_a(bottleneck, y, grad_scaled_y, grad_z, z, scale)
        return *(x.unflatten(0, heads) for x in (grad_q.mT, grad_bottleneck, grad_v.mT)), None


def _part(x: Tensor | None, problems: slice) -> Tensor | None:
    return None if x is None else x[problems]


class _Blocks(NamedTuple):
    """Ranges of problems and of tokens whose kernels fit in the cache of a core."""

    problems: Sequence[slice]
    chunks: Sequence[slice]


_ONE_BLOCK = _Blocks((slice(None),), (slice(None),))


def _blocks(bottleneck: Tensor, q: Tensor) -> _Blocks:
    """Return the blocks of a case: a single one on a GPU, and in captured graphs, which other sizes run as well."""
    if q.device.type != "cpu" or torch.compiler.is_compiling():
        return _ONE_BLOCK
    num_problems, num_tokens = q.shape[:2]
    row_bytes = bottleneck.shape[1] * q.element_size()
    num_chunks = max(1, -(-num_tokens // max(_CACHED_BYTES // row_bytes, _MIN_CHUNK)))
    chunk = -(-num_tokens // num_chunks)
    part = torch.get_num_threads() * max(1, _CACHED_BYTES // max(1, chunk * row_bytes))
    return _Blocks(_ranges(num_problems, part), _ranges(num_tokens, chunk))


def _ranges(count: int, size: int) -> Sequence[slice]:
    return _ONE_BLOCK.chunks if size >= count else [slice(start, start + size) for start in range(0, count, size)]


def _columns(x: Tensor | None, chunk: slice) -> Tensor | None:
    return None if x is None else x[:, :, chunk]


def _kernels_and_sums(
    bottleneck: Tensor, q: Tensor, v: Tensor, chunks: Sequence[slice]
) -> tuple[Sequence[Tensor], Tensor]:
    """Return the kernels `[P, M, n]` of chunks of n tokens, and `K1^T v` `[P, M, E]` of all tokens."""
    kernels = [_kernel(bottleneck, q[:, chunk].mT) for chunk in chunks]
    total = torch.bmm(kernels[0], v[:, chunks[0]])
    for kernel, chunk in zip(kernels[1:], chunks[1:], strict=True):
        # With out= because torch's FLOP counter does not know baddbmm_.
        torch.baddbmm(total, kernel, v[:, chunk], out=total)
    return kernels, total


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    """Return `exp(-||a_i - b_j||^2 / 2)` `[P, I, J]` of a `[P, I, D]` and b transposed `[P, D, J]`, in one buffer.

    Powers of two, because PyTorch's exp2 on a CPU takes a third of the time of exp, and a tenth where results are
    denormal. The operands of the product change the base, so the exponent is not rounded once more.
    """
    column = b.square().sum(1, keepdim=True)
    exponent = torch.baddbmm(column, a * LOG2_E, b, beta=-0.5 * LOG2_E)
    return exponent.sub_(a.square().sum(2, keepdim=True), alpha=0.5 * LOG2_E).clamp_(max=0).exp2_()


def invert(bottleneck: Tensor, options: InverseOptions) -> tuple[Tensor, Tensor | None]:
    """Return W or the Cholesky factor `[P, M, M]` of tokens `[B, H, M, D]`; and s `[P, M, 1]`, or None."""
    a = self_gaussian_kernel(bottleneck)
    if options.inverse == "cholesky":
        w = cholesky_factor(add_ridge(a, options.ridge))
    else:
        w = newton_iterates(a, options.newton_iters, options.ridge, options.newton_start)
    scale = a.sum(3, keepdim=True).rsqrt_().flatten(0, 1) if options.normalize else None
    return w.flatten(0, 1), scale


def apply_inverse(inverse: str, w: Tensor, b: Tensor) -> Tensor:
    """Return `W b` for b `[P, M, K]`, from W or the Cholesky factor."""
    return solve_factored(w, b) if inverse == "cholesky" else torch.bmm(w, b)


def _attend(
    inverse: str,
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    w: Tensor,
    scale: Tensor | None,
    chunks: Sequence[slice] = _ONE_BLOCK.chunks,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result `[P, E, N]`, y' and z'; if there are several chunks, the result is in `out` alone."""
    kernels, z = _kernels_and_sums(bottleneck, q, v, chunks)
    if scale is not None:
        z.mul_(scale)
    y = apply_inverse(inverse, w, z)
    scaled_y = y if scale is None else y * scale
    for chunk, kernel in zip(chunks, kernels, strict=True):
        x = torch.bmm(scaled_y.mT, kernel, out=_columns(out, chunk))
    return x, y, z


def _gradients(
    inverse: str,
    grad: Tensor,
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    scaled_y: Tensor,
    w: Tensor,
    scale: Tensor | None,
    chunks: Sequence[slice] = _ONE_BLOCK.chunks,
    out: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients through the N x M kernel.

    They are of q `[P, D, N]`, the bottleneck tokens `[P, M, D]`, v `[P, E, N]`, y and z' `[P, M, E]`. If there are
    several chunks, the first three are in `out` alone.
    """
    kernels, grad_scaled_y = _kernels_and_sums(bottleneck, q, grad, chunks)
    grad_z = apply_inverse(inverse, w, grad_scaled_y if scale is None else grad_scaled_y * scale)
    grad_scaled_z = grad_z if scale is None else grad_z * scale
    grad_bottleneck = torch.zeros_like(bottleneck) if out[1] is None else out[1].zero_()
    for chunk, kernel in zip(chunks, kernels, strict=True):
        grad_v = torch.bmm(grad_scaled_z.mT, kernel, out=_columns(out[2], chunk))
        s = torch.bmm(scaled_y, grad[:, chunk].mT)
        s = torch.baddbmm(s, grad_scaled_z, v[:, chunk].mT, out=s).mul_(kernel)
        # The gradients of exp(-||a_i - b_j||^2 / 2) for both of its arguments.
        grad_q = torch.bmm(bottleneck.mT, s, out=_columns(out[0], chunk))
        grad_q.addcmul_(q[:, chunk].mT, s.sum(1, keepdim=True), value=-1)
        torch.baddbmm(grad_bottleneck, s, q[:, chunk], out=grad_bottleneck)
        grad_bottleneck.addcmul_(bottleneck, s.sum(2, keepdim=True), value=-1)
    return grad_q, grad_bottleneck, grad_v, grad_scaled_y, grad_z


def gradient_through_a(
    bottleneck: Tensor, y: Tensor, grad_scaled_y: Tensor, grad_z: Tensor, z: Tensor | None, scale: Tensor | None
) -> Tensor:
    """Return the gradient `[P, M, D]` of the bottleneck tokens through A and, if normalised, through its row sums."""
    grad_a = torch.bmm(grad_z, y.mT).neg_()
    if scale is not None and z is not None:
        # s scales z and y. z is stored as s z, so its term is divided by s; ds / drowsum = -s^3 / 2.
        grad_scale = (grad_scaled_y * y).sum(2, keepdim=True) + (grad_z * z).sum(2, keepdim=True) / scale
        grad_a -= 0.5 * grad_scale * scale.pow(3)
    # The diagonal of A needs no mask: the gradient of the distance of a token to itself is zero.
    s = grad_a.mul_(_kernel(bottleneck, bottleneck.mT))
    s = s + s.mT
    return torch.bmm(s, bottleneck).addcmul_(bottleneck, s.sum(2, keepdim=True), value=-1)
