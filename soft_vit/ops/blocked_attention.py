"""The operator in batched products, forward and backward by hand, in blocks that stay in a CPU's cache.

Letters: P problems (B images times H heads), N tokens, M bottleneck tokens, D channels of q, E channels of v.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from soft_vit.ops.gaussian import self_gaussian_kernel
from soft_vit.ops.inverse import NewtonStart, add_ridge, newton_iterate, newton_step_size
from soft_vit.ops.precision import full_precision_backward

LOG2_E = 1.4426950408889634

# Of a core's second-level cache, which is 1 to 2 MiB on servers, what its kernel may take beside operands and results.
_CACHED_BYTES = 640 << 10
# Below it, calls cost more than a cache saves.
_LEAST_CHUNK = 1024

_ALL = (slice(None),)


class BlockedAttention(torch.autograd.Function):
    """q `[P, N, D]`, bottleneck `[P, M, D]`, v `[P, N, E]`, and the options of `soft_vit.ops.soft_attention`.

    Kernels are held transposed, `[P, M, N]`: so q and v may lie in memory as `[P, D, N]` (feature maps) or `[P, N, D]`
    without a copy, and rows of the kernel are long. They are computed again in backward.

    W is the inverse as it acts, symmetric: `y' = W z'`, with `z' = s z`, `y = s y'` and `s = rowsum(A)^(-1/2)` or 1.
    Newton's closed-form gradient and the exact Cholesky gradient are both `dA = -(W dy') y'^T`.
    """

    @staticmethod
    def forward(
        ctx,
        q: Tensor,
        bottleneck: Tensor,
        v: Tensor,
        inverse: str,
        normalize: bool,
        iters: int,
        ridge: float,
        start: NewtonStart,
    ) -> Tensor:
        a = self_gaussian_kernel(bottleneck)
        scale = a.sum(2, keepdim=True).rsqrt_() if normalize else None
        p = add_ridge(a, ridge)
        if inverse == "cholesky":
            w, _ = torch.linalg.cholesky_ex(p)
        else:
            w = newton_iterate(p, newton_step_size(a, ridge, start) * p, iters)
        problems, chunks = _blocks(bottleneck, q)
        if problems == _ALL:
            x, y, z = _attend(inverse, q, bottleneck, v, w, scale, chunks)
        else:
            x, y = v.new_empty(v.mT.shape), v.new_empty(*bottleneck.shape[:2], v.shape[2])
            z = None if scale is None else torch.empty_like(y)
            for part in problems:
                operands = (_part(t, part) for t in (q, bottleneck, v, w, scale))
                _, y[part], z_part = _attend(inverse, *operands, chunks, x[part])
                if z is not None:
                    z[part] = z_part
        ctx.save_for_backward(q, bottleneck, v, y, w, *(() if scale is None else (z, scale)))
        ctx.inverse = inverse
        return x.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        with full_precision_backward(grad):
            return BlockedAttention._backward(ctx, grad)

    @staticmethod
    def _backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        # torch.compile of torch 2.4 hands saved tensors over in the order of their first use, so that is made theirs.
        q, bottleneck, v, y, w, *rest = (tensor.view_as(tensor) for tensor in ctx.saved_tensors)
        z, scale = rest or (None, None)
        operands = (grad, q, bottleneck, v, y, w, z, scale)
        problems, chunks = _blocks(bottleneck, q)
        if problems == _ALL:
            gradients = _gradients(ctx.inverse, *operands, chunks)
        else:
            gradients = tuple(t.new_empty(t.shape) for t in (q.mT, bottleneck, v.mT))
            for part in problems:
                out = tuple(gradient[part] for gradient in gradients)
                _gradients(ctx.inverse, *(_part(t, part) for t in operands), chunks, out)
        grad_q, grad_bottleneck, grad_v = gradients
        return grad_q.mT, grad_bottleneck, grad_v.mT, None, None, None, None, None


def _part(x: Tensor | None, problems: slice) -> Tensor | None:
    return None if x is None else x[problems]


def _blocks(bottleneck: Tensor, q: Tensor) -> tuple[Sequence[slice], Sequence[slice]]:
    """Ranges of problems and ranges of tokens between which a kernel of each core stays in its cache.

    All at once on a GPU, and where a graph is captured that other sizes will run.
    """
    if q.device.type != "cpu" or torch.compiler.is_compiling():
        return _ALL, _ALL
    num_problems, num_tokens = q.shape[:2]
    row_bytes = bottleneck.shape[1] * q.element_size()
    num_chunks = max(1, -(-num_tokens // max(_CACHED_BYTES // row_bytes, _LEAST_CHUNK)))
    chunk = -(-num_tokens // num_chunks)
    part = torch.get_num_threads() * max(1, _CACHED_BYTES // max(1, chunk * row_bytes))
    return _ranges(num_problems, part), _ranges(num_tokens, chunk)


def _ranges(count: int, size: int) -> Sequence[slice]:
    return _ALL if size >= count else tuple(slice(start, start + size) for start in range(0, count, size))


def _kernels_and_sums(
    bottleneck: Tensor, q: Tensor, v: Tensor, chunks: Sequence[slice]
) -> tuple[Sequence[Tensor], Tensor]:
    """The kernels `[P, M, n]` of chunks of n tokens, and `K1^T v` `[P, M, E]` of all."""
    kernels, total = [], None
    for chunk in chunks:
        kernel, v_chunk = _kernel(bottleneck, q[:, chunk].mT), v[:, chunk]
        total = torch.bmm(kernel, v_chunk) if total is None else total.baddbmm_(kernel, v_chunk)
        kernels.append(kernel)
    return kernels, total


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    """`exp(-||a_i - b_j||^2 / 2)` of a `[P, I, D]` and b transposed `[P, D, J]`, in one buffer, `[P, I, J]`.

    By powers of two: PyTorch's exp2 on a CPU takes a third of the time of its exp, and a tenth where results are
    denormal. The change of base is in the operands of the product, so it costs no rounding of the exponent.
    """
    column = b.square().sum(1, keepdim=True)
    exponent = torch.baddbmm(column, a * LOG2_E, b, beta=-0.5 * LOG2_E)
    return exponent.sub_(a.square().sum(2, keepdim=True), alpha=0.5 * LOG2_E).clamp_(max=0).exp2_()


def _solve(inverse: str, w: Tensor, b: Tensor) -> Tensor:
    return torch.cholesky_solve(b, w) if inverse == "cholesky" else torch.bmm(w, b)


def _attend(
    inverse: str,
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    w: Tensor,
    scale: Tensor | None,
    chunks: Sequence[slice],
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The result `[P, E, N]`, in `out` if given, y' and z'."""
    kernels, z = _kernels_and_sums(bottleneck, q, v, chunks)
    if scale is not None:
        z.mul_(scale)
    y = _solve(inverse, w, z)
    scaled_y = y if scale is None else y * scale
    if len(kernels) > 1 and out is None:
        out = v.new_empty(v.mT.shape)
    for chunk, kernel in zip(chunks, kernels, strict=True):
        x = _product(scaled_y.mT, kernel, out, chunk)
    return x, y, z


def _product(a: Tensor, b: Tensor, out: Tensor | None, chunk: slice) -> Tensor:
    """`a b`, in columns of `out` where there is one, which is then returned."""
    if out is None:
        return torch.bmm(a, b)
    torch.bmm(a, b, out=out[:, :, chunk])
    return out


def _gradients(
    inverse: str,
    grad: Tensor,
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    y: Tensor,
    w: Tensor,
    z: Tensor | None,
    scale: Tensor | None,
    chunks: Sequence[slice],
    out: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q `[P, D, N]`, the bottleneck tokens `[P, M, D]` and v `[P, E, N]`, in `out` if given."""
    kernels, grad_scaled_y = _kernels_and_sums(bottleneck, q, grad, chunks)
    a = self_gaussian_kernel(bottleneck)

    grad_y = grad_scaled_y if scale is None else grad_scaled_y * scale
    grad_z = _solve(inverse, w, grad_y)
    grad_a = torch.bmm(grad_z, y.mT).neg_()
    scaled_y, grad_scaled_z = y, grad_z
    if scale is not None:
        # z holds s z: the product rule of both scalings divides by s once, ds / drowsum = -s^3 / 2 cancels it.
        grad_scale = (grad_scaled_y * y).sum(2, keepdim=True) + (grad_z * z).sum(2, keepdim=True) / scale
        grad_a -= 0.5 * grad_scale * scale.pow(3)
        scaled_y, grad_scaled_z = y * scale, grad_z * scale

    # The diagonal of A is constant, and its distance has no gradient.
    left, right = _kernel_backward(grad_a.mul_(a), bottleneck, bottleneck.mT)
    grad_bottleneck = left + right.mT
    if out is None and len(chunks) > 1:
        out = tuple(t.new_empty(t.shape) for t in (q.mT, bottleneck, v.mT))
    grad_q, out_bottleneck, grad_v = out or (None, None, None)
    for chunk, kernel in zip(chunks, kernels, strict=True):
        grad_v = _product(grad_scaled_z.mT, kernel, grad_v, chunk)
        s = torch.bmm(scaled_y, grad[:, chunk].mT).baddbmm_(grad_scaled_z, v[:, chunk].mT).mul_(kernel)
        of_bottleneck, of_q = _kernel_backward(s, bottleneck, q[:, chunk].mT)
        grad_bottleneck += of_bottleneck
        if grad_q is None:
            grad_q = of_q
        else:
            grad_q[:, :, chunk] = of_q
    if out_bottleneck is not None:
        out_bottleneck.copy_(grad_bottleneck)
    return grad_q, grad_bottleneck, grad_v


def _kernel_backward(grad_times_kernel: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `exp(-||a_i - b_j||^2 / 2)` for a `[P, I, D]` and b transposed `[P, D, J]`."""
    s = grad_times_kernel
    grad_a = torch.bmm(s, b.mT).addcmul_(a, s.sum(2, keepdim=True), value=-1)
    grad_b = torch.bmm(a.mT, s).addcmul_(b, s.sum(1, keepdim=True), value=-1)
    return grad_a, grad_b
