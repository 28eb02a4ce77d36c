"""Plan the launches of the operator's passes from the shapes, strides and dtypes of tensors, once for each case."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from soft_vit.ops.soft.options import InverseOptions
from soft_vit.ops.soft.triton.backward import kernel_gradients
from soft_vit.ops.soft.triton.forward import kernel_outputs, kernel_sums
from soft_vit.ops.soft.triton.layouts import strides_of
from soft_vit.ops.soft.triton.solve import image_step_size, solve_backward, solve_forward
from soft_vit.ops.soft.triton.tiling import (
    MAX_ON_CHIP,
    Tiling,
    padded_tile_size,
    pass_tiling,
    product_precision,
    solve_options,
    widths,
)

# Cases whose launches are cached; a model at one image size has about ten.
MAX_CASES = 1024


class Launch:
    """`kernel[grid](*tensors, *numbers, **options)`, bound once for tensors of one dtype and device.

    Triton takes longer to bind 40 arguments than a GPU takes to compute a small case.
    """

    def __init__(self, kernel: Any, grid: tuple[int, int, int], numbers: tuple, options: dict[str, Any]) -> None:
        self.kernel = kernel
        self.grid = grid
        self.numbers = numbers
        self.options = options
        # Triton compiles for the alignment of addresses, which may differ between calls.
        self._compiled: dict[tuple[int, ...], tuple[Any, tuple]] = {}

    def __call__(self, *tensors: Tensor) -> None:
        addresses = [tensor.data_ptr() for tensor in tensors]
        alignment = tuple([address % 16 for address in addresses])
        known = self._compiled.get(alignment)
        if known is not None:
            compiled, others = known
            # Plain addresses save a call of the driver; the caller keeps the tensors alive.
            compiled[self.grid](*addresses, *others)
            return
        compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.options)
        # The interpreter returns None.
        if compiled is not None:
            names = [parameter.name for parameter in self.kernel.params[len(tensors) + len(self.numbers) :]]
            self._compiled[alignment] = compiled, (*self.numbers, *[self.options[name] for name in names])


class Form(NamedTuple):
    """The properties of a tensor that a launch depends on."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


def form(x: Tensor) -> Form:
    return Form(x.shape, x.stride(), x.dtype)


def multiple_of(*tensors: Form) -> int:
    """Return the largest of 1, 2, 4, 8, 16 that divides N of `[B, H, N, D]` and every channel stride other than 1."""
    return math.gcd(16, tensors[0].shape[2], *(x.strides[3] for x in tensors if x.strides[3] != 1))


def tiling_of(q: Form, bottleneck: Form, v: Form, backward: bool) -> Tiling:
    precision = product_precision(q.dtype, v.dtype)
    return pass_tiling(*q.shape[1:3], bottleneck.shape[2], q.shape[3], v.shape[3], precision, backward)


@dataclass(frozen=True)
class ForwardPlan:
    """Shapes of the fp32 tensors (see `op.forward`; `(0,)` if unused) and launches.

    step_size: of one step size for each image; None where each matrix has its own. solve: None if the bottleneck tokens
    do not fit on chip.
    """

    partial: tuple[int, ...]
    w: tuple[int, ...]
    scale: tuple[int, ...]
    y: tuple[int, ...]
    z: tuple[int, ...]
    step_size: Launch | None
    sums: Launch
    solve: Launch | None
    outputs: Launch


@lru_cache(maxsize=MAX_CASES)
def plan_forward(
    device: torch.device,
    q: Form,
    bottleneck: Form,
    v: Form,
    residual: Form | None,
    options: InverseOptions,
    layout: str,
) -> ForwardPlan:
    """Plan a forward. layout: of the result. device: part of the key, because compiled kernels belong to a device."""
    tiling = tiling_of(q, bottleneck, v, backward=False)
    problems, size, columns = q.shape[0] * q.shape[1], bottleneck.shape[2], v.shape[3]
    partial, y = (problems, tiling.chunks, size, columns), (problems, size, columns)
    x = Form(v.shape, strides_of(v.shape, layout), v.dtype)
    added = residual or x
    outputs = Launch(
        kernel_outputs,
        (problems, tiling.chunks, 1),
        (q.shape[1], q.shape[2], size, tiling.tiles, *q.strides, *bottleneck.strides, *added.strides, *x.strides),
        dict(
            NORMALIZE=options.normalize,
            HAS_RESIDUAL=residual is not None,
            BLOCKS=tiling.blocks,
            MULTIPLE=multiple_of(q, added, x),
            **tiling.options(),
        ),
    )
    if size > MAX_ON_CHIP:
        return ForwardPlan(partial, (0,), (0,), y, (0,), None, plan_sums(q, bottleneck, v), None, outputs)
    solve = Launch(
        solve_forward,
        (problems, 1, 1),
        (size, tiling.chunks),
        dict(
            INVERSE=options.inverse,
            NORMALIZE=options.normalize,
            DV=columns,
            BLOCK_DV=padded_tile_size(columns),
            **solve_options(size, columns, tiling.precision),
        ),
    )
    w = (problems, size, size)
    scale, z = ((problems, size), y) if options.normalize else ((0,), (0,))
    step_size = None
    if options.inverse == "newton" and options.newton_start == "guarded_image":
        step_size = Launch(
            image_step_size,
            (q.shape[0], 1, 1),
            (q.shape[1], size, options.ridge, *bottleneck.strides),
            dict(
                D=q.shape[3], BLOCK_D=padded_tile_size(q.shape[3]), **solve_options(size, q.shape[3], tiling.precision)
            ),
        )
    sums = plan_sums(q, bottleneck, v, options)
    return ForwardPlan(partial, w, scale, y, z, step_size, sums, solve, outputs)


def plan_sums(q: Form, bottleneck: Form, v: Form, options: InverseOptions | None = None) -> Launch:
    """Plan `K1^T v` of chunks of tokens and, if options are given, W and s (see `solve.invert`)."""
    tiling, size = tiling_of(q, bottleneck, v, backward=False), bottleneck.shape[2]
    iters, ridge = (0, 0.0) if options is None else (options.newton_iters, options.ridge)
    sizes = (q.shape[1], q.shape[2], size, tiling.tiles, iters, ridge)
    with_newton = options is not None and options.inverse == "newton" and padded_tile_size(size) == 64
    return Launch(
        kernel_sums,
        (q.shape[0] * q.shape[1], tiling.chunks + (options is not None), tiling.blocks),
        (*sizes, *q.strides, *bottleneck.strides, *v.strides),
        dict(
            INVERSE="none" if options is None else options.inverse,
            START="rowsum" if options is None else options.newton_start,
            NORMALIZE=options is not None and options.normalize,
            BLOCK_A=padded_tile_size(size),
            MULTIPLE=multiple_of(q, v),
            **tiling.options(newton=with_newton),
        ),
    )


@dataclass(frozen=True)
class BackwardPlan:
    """Shapes of the fp32 tensors and launches.

    parts: gradients of the bottleneck tokens, one from each chunk and the last through A.
    solve: None if the bottleneck tokens do not fit on chip.
    """

    partial: tuple[int, ...]
    parts: tuple[int, ...]
    sums: Launch
    solve: Launch | None
    gradients: tuple[Launch, ...]


@lru_cache(maxsize=MAX_CASES)
def plan_backward(
    device: torch.device,
    grad: Form,
    q: Form,
    bottleneck: Form,
    v: Form,
    inverse: str,
    normalize: bool,
    q_layout: str,
    v_layout: str,
) -> BackwardPlan:
    """Plan a backward. Layouts: of the gradients. device: as in `plan_forward`."""
    sums_tiling, tiling = (tiling_of(q, bottleneck, v, backward) for backward in (False, True))
    problems, size, d, dv = q.shape[0] * q.shape[1], *bottleneck.shape[2:], v.shape[3]
    parts = (problems, tiling.chunks + 1, size, d)
    problem_stride = math.prod(parts[1:])
    grad_q = Form(q.shape, strides_of(q.shape, q_layout), q.dtype)
    grad_v = Form(v.shape, strides_of(v.shape, v_layout), v.dtype)
    strides = (*q.strides, *bottleneck.strides, *v.strides, *grad.strides, *grad_q.strides, *grad_v.strides)
    gradients = [
        Launch(
            kernel_gradients,
            (problems, tiling.chunks, 1 if of_tokens else tiling.blocks),
            (q.shape[1], q.shape[2], size, tiling.tiles, *strides, problem_stride),
            dict(
                NORMALIZE=normalize,
                OF_TOKENS=of_tokens,
                OF_BOTTLENECK=of_bottleneck,
                BLOCKS=tiling.blocks if of_tokens else 1,
                MULTIPLE=multiple_of(q, v, grad, grad_q, grad_v),
                **tiling.options(),
            ),
        )
        for of_tokens, of_bottleneck in (((True, True),) if tiling.blocks == 1 else ((True, False), (False, True)))
    ]
    solve, width = None, max(d, dv)
    if size <= MAX_ON_CHIP:
        solve = Launch(
            solve_backward,
            (problems, 1, 1),
            (q.shape[1], size, sums_tiling.chunks, *bottleneck.strides, problem_stride),
            dict(INVERSE=inverse, NORMALIZE=normalize, **widths(d, dv), **solve_options(size, width, tiling.precision)),
        )
    partial = (problems, sums_tiling.chunks, size, dv)
    return BackwardPlan(partial, parts, plan_sums(q, bottleneck, grad), solve, tuple(gradients))
