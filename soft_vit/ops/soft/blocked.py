"""The operator in batched products, forward and backward by hand, in blocks that stay in a CPU's cache.

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

# The part of a core's second-level cache (1 to 2 MiB on servers) for a kernel, next to operands and results.
_CACHED_BYTES = 640 << 10
# Below it, calls cost more than a cache saves.
_MIN_CHUNK = 1024


class BlockedAttention(torch.autograd.Function):
    """q `[B, H, N, D]`, bottleneck `[B, H, M, D]`, v `[B, H, N, E]` to `[P, E, N]`, with P = B * H.

    Kernels are held transposed, `[P, M, N]`: so q and v may lie in memory as `[P, D, N]` (feature maps) or `[P, N, D]`
    without a copy, and rows of the kernel are long. They are computed again in backward.

    W is the inverse as it acts, symmetric: `y' = W z'`, with `z' = s z`, `y = s y'` and `s = rowsum(A)^(-1/2)` or 1.
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
        # Not its transpose: a view made here could not be written to by the caller.
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with full_precision_backward(grad):
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return BlockedAttention._backward(ctx, grad.mT)
            inputs = ctx.saved_tensors[:3]
            # A gradient by hand cannot be differentiated.
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
            # In memory as their inputs are: element by element, two layouts take three times as long.
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
    """Ranges of problems and ranges of tokens, between which a kernel of each core stays in its cache."""

    problems: Sequence[slice]
    chunks: Sequence[slice]


_ONE_BLOCK = _Blocks((slice(None),), (slice(None),))


def _blocks(bottleneck: Tensor, q: Tensor) -> _Blocks:
    """All in one block on a GPU, and where a graph is captured that other sizes will run."""
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
    """The kernels `[P, M, n]` of chunks of n tokens, and `K1^T v` `[P, M, E]` of all."""
    kernels = [_kernel(bottleneck, q[:, chunk].mT) for chunk in chunks]
    total = torch.bmm(kernels[0], v[:, chunks[0]])
    for kernel, chunk in zip(kernels[1:], chunks[1:], strict=True):
        # Not baddbmm_, which torch's counter of FLOPs does not know.
        torch.baddbmm(total, kernel, v[:, chunk], out=total)
    return kernels, total


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    """`exp(-||a_i - b_j||^2 / 2)` of a `[P, I, D]` and b transposed `[P, D, J]`, in one buffer, `[P, I, J]`.

    By powers of two: PyTorch's exp2 on a CPU takes a third of the time of its exp, and a tenth where results are
    denormal. The change of base is in the operands of the product, so it costs no rounding of the exponent.
    """
    column = b.square().sum(1, keepdim=True)
    exponent = torch.baddbmm(column, a * LOG2_E, b, beta=-0.5 * LOG2_E)
    return exponent.sub_(a.square().sum(2, keepdim=True), alpha=0.5 * LOG2_E).clamp_(max=0).exp2_()


def invert(bottleneck: Tensor, options: InverseOptions) -> tuple[Tensor, Tensor | None]:
    """W `[P, M, M]`, or the Cholesky factor, of tokens `[B, H, M, D]` and, normalised, s `[P, M, 1]`."""
    a = self_gaussian_kernel(bottleneck)
    if options.inverse == "cholesky":
        w = cholesky_factor(add_ridge(a, options.ridge))
    else:
        w = newton_iterates(a, options.newton_iters, options.ridge, options.newton_start)
    scale = a.sum(3, keepdim=True).rsqrt_().flatten(0, 1) if options.normalize else None
    return w.flatten(0, 1), scale


def apply_inverse(inverse: str, w: Tensor, b: Tensor) -> Tensor:
    """`W b` of matrices `[P, M, K]`, of W or the Cholesky factor."""
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
    """The result `[P, E, N]`, y' and z'; with chunks the result is in `out`."""
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
    """Gradients through the N x M kernel: of q `[P, D, N]`, the bottleneck tokens `[P, M, D]` and
    v `[P, E, N]`, with chunks in `out`, and of y and z' `[P, M, E]`."""
    kernels, grad_scaled_y = _kernels_and_sums(bottleneck, q, grad, chunks)
    grad_z = apply_inverse(inverse, w, grad_scaled_y if scale is None else grad_scaled_y * scale)
    grad_scaled_z = grad_z if scale is None else grad_z * scale
    grad_bottleneck = torch.zeros_like(bottleneck) if out[1] is None else out[1].zero_()
    for chunk, kernel in zip(chunks, kernels, strict=True):
        grad_v = torch.bmm(grad_scaled_z.mT, kernel, out=_columns(out[2], chunk))
        s = torch.bmm(scaled_y, grad[:, chunk].mT)
        s = torch.baddbmm(s, grad_scaled_z, v[:, chunk].mT, out=s).mul_(kernel)
        of_bottleneck, grad_q = _kernel_backward(s, bottleneck, q[:, chunk].mT, _columns(out[0], chunk))
        grad_bottleneck += of_bottleneck
    return grad_q, grad_bottleneck, grad_v, grad_scaled_y, grad_z


def gradient_through_a(
    bottleneck: Tensor, y: Tensor, grad_scaled_y: Tensor, grad_z: Tensor, z: Tensor | None, scale: Tensor | None
) -> Tensor:
    """The gradient of the bottleneck tokens through A and, normalised, its row sums, `[P, M, D]`."""
    grad_a = torch.bmm(grad_z, y.mT).neg_()
    if scale is not None and z is not None:
        # z holds s z: the product rule of both scalings divides by s once, ds / drowsum = -s^3 / 2 cancels it.
        grad_scale = (grad_scaled_y * y).sum(2, keepdim=True) + (grad_z * z).sum(2, keepdim=True) / scale
        grad_a -= 0.5 * grad_scale * scale.pow(3)
    # The diagonal of A is constant, and its distance has no gradient.
    left, right = _kernel_backward(grad_a.mul_(self_gaussian_kernel(bottleneck)), bottleneck, bottleneck.mT)
    return left + right.mT


def _kernel_backward(
    grad_times_kernel: Tensor, a: Tensor, b: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients of `exp(-||a_i - b_j||^2 / 2)` for a `[P, I, D]` and, in `out`, b transposed `[P, D, J]`."""
    s = grad_times_kernel
    grad_a = torch.bmm(s, b.mT).addcmul_(a, s.sum(2, keepdim=True), value=-1)
    grad_b = torch.bmm(a.mT, s, out=out).addcmul_(b, s.sum(1, keepdim=True), value=-1)
    return grad_a, grad_b
