"""The passes of the operator one after the other, and where their results lie in memory."""

import math
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import torch
from torch import Tensor

from soft_vit.ops.triton import newton, solve_large
from soft_vit.ops.triton.backward import kernel_gradients
from soft_vit.ops.triton.call import call
from soft_vit.ops.triton.forward import kernel_outputs, kernel_sums
from soft_vit.ops.triton.layout import empty
from soft_vit.ops.triton.solve import solve_backward, solve_forward
from soft_vit.ops.triton.tiling import (
    MAX_ON_CHIP,
    Tiling,
    newton_options,
    pass_tiling,
    product_precision,
    side,
    solve_options,
    widths,
)


def on_device(x: Tensor) -> AbstractContextManager:
    """Triton launches on the current device, which need not be that of x."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def multiple_of(*tensors: Tensor) -> int:
    """The largest of 1, 2, 4, 8, 16 that divides N of `[B, H, N, D]` and where channels lie that are not adjacent."""
    return _multiple_of(tensors[0].shape[2], *[x.stride(3) for x in tensors])


@lru_cache(maxsize=1024)
def _multiple_of(num_tokens: int, *strides: int) -> int:
    return math.gcd(16, num_tokens, *(stride for stride in strides if stride != 1))


def tiling_of(q: Tensor, bottleneck: Tensor, v: Tensor, backward: bool) -> Tiling:
    return pass_tiling(q.shape[2], bottleneck.shape[2], q.shape[3], v.shape[3], product_precision(q, v), backward)


def forward(
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    residual: Tensor | None,
    inverse: str,
    normalize: bool,
    iters: int,
    ridge: float,
    start: str,
    layout: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x, y, W and, normalised, z and s: see `soft_vit.ops.triton.op.forward`."""
    tiling = tiling_of(q, bottleneck, v, backward=False)
    x = empty(v.shape, layout, v)
    with on_device(q):
        options = (inverse, normalize, iters, ridge, start)
        if bottleneck.shape[2] <= MAX_ON_CHIP:
            partial, w, scale = sums(q, bottleneck, v, tiling, *options)
            y, z = on_chip_forward(partial, w, scale, inverse, normalize, tiling.precision)
        else:
            partial, _, _ = sums(q, bottleneck, v, tiling)
            y, w, z, scale = solve_large.forward(bottleneck, partial, *options)
        added = x if residual is None else residual
        sizes = (q.shape[1], q.shape[2], bottleneck.shape[2], tiling.tiles)
        call(
            kernel_outputs,
            (partial.shape[0], tiling.chunks, 1),
            (q, bottleneck, y, scale, added, x),
            sizes + q.stride() + bottleneck.stride() + added.stride() + x.stride(),
            dict(
                NORMALIZE=normalize,
                HAS_RESIDUAL=residual is not None,
                BLOCKS=tiling.blocks,
                MULTIPLE=multiple_of(q, added, x),
                **tiling.options(),
            ),
        )
    return x, y, w, z, scale


def backward(
    grad: Tensor,
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    y: Tensor,
    w: Tensor,
    z: Tensor,
    scale: Tensor,
    inverse: str,
    normalize: bool,
    q_layout: str,
    v_layout: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, the bottleneck tokens and v."""
    tiling = tiling_of(q, bottleneck, v, backward=True)
    grad_q, grad_v = empty(q.shape, q_layout, q), empty(v.shape, v_layout, v)
    with on_device(q):
        partial, _, _ = sums(q, bottleneck, grad, tiling_of(q, bottleneck, v, backward=False))
        # One part more than there are chunks: what the kernel between bottleneck tokens adds.
        parts = q.new_empty((y.shape[0], tiling.chunks + 1, *bottleneck.shape[2:]), dtype=torch.float32)
        solve = on_chip_backward if bottleneck.shape[2] <= MAX_ON_CHIP else solve_large.backward
        grad_z = solve(bottleneck, partial, y, w, z, scale, parts[:, -1], inverse, normalize, tiling.precision)
        for of_tokens, of_bottleneck in ((True, True),) if tiling.blocks == 1 else ((True, False), (False, True)):
            strides = sum((x.stride() for x in (q, bottleneck, v, grad, grad_q, grad_v)), ())
            call(
                kernel_gradients,
                (y.shape[0], tiling.chunks, 1 if of_tokens else tiling.blocks),
                (q, bottleneck, v, grad, y, scale, grad_z, grad_q, grad_v, parts),
                (q.shape[1], q.shape[2], bottleneck.shape[2], tiling.tiles, *strides, parts.stride(0)),
                dict(
                    NORMALIZE=normalize,
                    OF_TOKENS=of_tokens,
                    OF_BOTTLENECK=of_bottleneck,
                    BLOCKS=tiling.blocks if of_tokens else 1,
                    MULTIPLE=multiple_of(q, v, grad, grad_q, grad_v),
                    **tiling.options(),
                ),
            )
        grad_bottleneck = parts.sum(1).to(bottleneck.dtype).view(bottleneck.shape)
    return grad_q, grad_bottleneck, grad_v


def sums(
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    tiling: Tiling,
    inverse: str = "none",
    normalize: bool = False,
    iters: int = 0,
    ridge: float = 0.0,
    start: str = "rowsum",
) -> tuple[Tensor, Tensor, Tensor]:
    """`K1^T v` of chunks of tokens, `[P, chunks, M, Dv]` fp32; W and s, which `solve.invert` makes beside, or empty."""
    problems, size = q.shape[0] * q.shape[1], bottleneck.shape[2]
    partial = q.new_empty((problems, tiling.chunks, size, v.shape[3]), dtype=torch.float32)
    inverts = inverse != "none"
    w = partial.new_empty((problems, size, size) if inverts else 0)
    scale = partial.new_empty((problems, size) if normalize else 0)
    sizes = (q.shape[1], q.shape[2], size, tiling.tiles, iters, ridge)
    call(
        kernel_sums,
        (problems, tiling.chunks + inverts, tiling.blocks),
        (q, bottleneck, v, partial, w, scale),
        sizes + q.stride() + bottleneck.stride() + v.stride(),
        dict(
            INVERSE=inverse,
            START=start,
            NORMALIZE=normalize,
            BLOCK_A=side(size),
            MULTIPLE=multiple_of(q, v),
            **tiling.options(newton=inverse == "newton" and side(size) == 64),
        ),
    )
    return partial, w, scale


def on_chip_forward(
    partial: Tensor, w: Tensor, scale: Tensor, inverse: str, normalize: bool, precision: str
) -> tuple[Tensor, Tensor]:
    """The solution y and, normalised, z from the sums of chunks, one program for each problem."""
    problems, chunks, size, columns = partial.shape
    y = partial.new_empty((problems, size, columns))
    z = torch.empty_like(y) if normalize else partial.new_empty(0)
    call(
        solve_forward,
        (problems, 1, 1),
        (partial, y, w, z, scale),
        (size, chunks),
        dict(
            INVERSE=inverse,
            NORMALIZE=normalize,
            DV=columns,
            BLOCK_DV=side(columns),
            **solve_options(size, columns, precision),
        ),
    )
    return y, z


def on_chip_backward(
    bottleneck: Tensor,
    partial: Tensor,
    y: Tensor,
    w: Tensor,
    z: Tensor,
    scale: Tensor,
    grad_tokens: Tensor,
    inverse: str,
    normalize: bool,
    precision: str,
) -> Tensor:
    """The gradient of `K1^T v` from the sums of chunks of `K1^T dx`; fills grad_tokens `[P, M, D]`."""
    problems, chunks, size, _ = partial.shape
    grad_z = torch.empty_like(y)
    call(
        solve_backward,
        (problems, 1, 1),
        (bottleneck, partial, y, w, z, scale, grad_z, grad_tokens),
        (bottleneck.shape[1], size, chunks, *bottleneck.stride(), grad_tokens.stride(0)),
        dict(
            INVERSE=inverse,
            NORMALIZE=normalize,
            **widths(bottleneck.shape[3], partial.shape[3]),
            **solve_options(size, max(bottleneck.shape[3], partial.shape[3]), precision),
        ),
    )
    return grad_z


def newton_inverse(a: Tensor, iters: int, ridge: float, start: str) -> Tensor:
    """See `soft_vit.ops.triton.newton_op.forward`."""
    inverse = a.new_empty(a.shape)
    with on_device(a):
        options = dict(START=start, **newton_options(a.shape[1]))
        numbers = (a.shape[1], iters, ridge, *a.stride())
        call(newton.newton_inverse, (a.shape[0], 1, 1), (a, inverse), numbers, options)
    return inverse
