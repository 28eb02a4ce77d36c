"""The passes of the operator one after the other, and where their results lie in memory."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from soft_vit.ops.triton import newton, solve_large
from soft_vit.ops.triton.backward import kernel_gradients
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
        kernel_outputs[(partial.shape[0], tiling.chunks)](
            q,
            bottleneck,
            y,
            scale,
            added,
            x,
            q.shape[1],
            q.shape[2],
            bottleneck.shape[2],
            tiling.tiles,
            *q.stride(),
            *bottleneck.stride(),
            *added.stride(),
            *x.stride(),
            NORMALIZE=normalize,
            HAS_RESIDUAL=residual is not None,
            BLOCKS=tiling.blocks,
            **tiling.options(),
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
            kernel_gradients[(y.shape[0], tiling.chunks, 1 if of_tokens else tiling.blocks)](
                q,
                bottleneck,
                v,
                grad,
                y,
                scale,
                grad_z,
                grad_q,
                grad_v,
                parts,
                q.shape[1],
                q.shape[2],
                bottleneck.shape[2],
                tiling.tiles,
                *q.stride(),
                *bottleneck.stride(),
                *v.stride(),
                *grad.stride(),
                *grad_q.stride(),
                *grad_v.stride(),
                parts.stride(0),
                NORMALIZE=normalize,
                OF_TOKENS=of_tokens,
                OF_BOTTLENECK=of_bottleneck,
                BLOCKS=tiling.blocks if of_tokens else 1,
                **tiling.options(),
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
    kernel_sums[(problems, tiling.chunks + inverts, tiling.blocks)](
        q,
        bottleneck,
        v,
        partial,
        w,
        scale,
        q.shape[1],
        q.shape[2],
        size,
        tiling.tiles,
        iters,
        ridge,
        *q.stride(),
        *bottleneck.stride(),
        *v.stride(),
        INVERSE=inverse,
        START=start,
        NORMALIZE=normalize,
        BLOCK_A=side(size),
        **tiling.options(newton=inverse == "newton" and side(size) == 64),
    )
    return partial, w, scale


def on_chip_forward(
    partial: Tensor, w: Tensor, scale: Tensor, inverse: str, normalize: bool, precision: str
) -> tuple[Tensor, Tensor]:
    """The solution y and, normalised, z from the sums of chunks, one program for each problem."""
    problems, chunks, size, columns = partial.shape
    y = partial.new_empty((problems, size, columns))
    z = torch.empty_like(y) if normalize else partial.new_empty(0)
    solve_forward[(problems,)](
        partial,
        y,
        w,
        z,
        scale,
        size,
        chunks,
        INVERSE=inverse,
        NORMALIZE=normalize,
        DV=columns,
        BLOCK_DV=side(columns),
        **solve_options(size, precision),
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
    solve_backward[(problems,)](
        bottleneck,
        partial,
        y,
        w,
        z,
        scale,
        grad_z,
        grad_tokens,
        bottleneck.shape[1],
        size,
        chunks,
        *bottleneck.stride(),
        grad_tokens.stride(0),
        INVERSE=inverse,
        NORMALIZE=normalize,
        **widths(bottleneck.shape[3], partial.shape[3]),
        **solve_options(size, precision),
    )
    return grad_z


def newton_inverse(a: Tensor, iters: int, ridge: float, start: str) -> Tensor:
    """See `soft_vit.ops.triton.newton_op.forward`."""
    inverse = a.new_empty(a.shape)
    with on_device(a):
        newton.newton_inverse[(a.shape[0],)](
            a, inverse, a.shape[1], iters, ridge, *a.stride(), START=start, **newton_options(a.shape[1])
        )
    return inverse
