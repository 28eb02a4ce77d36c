"""The m x m part, on chip, one program for each problem: the inverse of A, `y = W K1^T v`, and its backward.

W stands for the Newton iterate of A or for two substitutions with the Cholesky factor of A + ridge I. It depends on the
bottleneck tokens alone, so `kernel_sums` computes it during the pass over the tokens.
"""

import triton
import triton.language as tl

from soft_vit.ops.soft.newton import MAX_HALVINGS as _MAX_HALVINGS
from soft_vit.ops.soft.newton import RESIDUAL_BOUND as _RESIDUAL_BOUND
from soft_vit.ops.soft.triton.newton import keep_modes, newton, rowsum_step_size, squared_row_sums, with_ridge
from soft_vit.ops.soft.triton.tiles import exp_accurate, half_square, head_pointer, load_tile, store_tile

MAX_HALVINGS = tl.constexpr(_MAX_HALVINGS)
RESIDUAL_BOUND = tl.constexpr(_RESIDUAL_BOUND)


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def self_gaussian(tokens, size, BLOCK_M: tl.constexpr, PRECISION: tl.constexpr):
    """Return A `[M, M]` of tokens `[M, D]`, zero outside of M x M, with a diagonal of exactly one."""
    slots = tl.arange(0, BLOCK_M)
    diagonal = slots[:, None] == slots[None, :]
    valid = (slots[:, None] < size) & (slots[None, :] < size)
    half = half_square(tokens, 1)
    exponent = product(tokens, tl.trans(tokens), PRECISION) - half[:, None] - half[None, :]
    exponent = tl.minimum(exponent, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.where(valid, exp_accurate(tl.where(diagonal, 0.0, exponent)), 0.0)


@triton.jit
def cholesky(p, factor, size, BLOCK_M: tl.constexpr):
    """Write L of `P = L L^T` to memory, column by column; NaN where P is not positive definite."""
    slots = tl.arange(0, BLOCK_M)
    for j in range(size):
        here = slots == j
        column = tl.sum(tl.where(here[None, :], p, 0.0), 1)
        root = tl.sqrt_rn(tl.sum(tl.where(here, column, 0.0), 0))
        column = tl.where(slots >= j, column / root, 0.0)
        tl.store(factor + slots * size + j, column, mask=slots < size)
        p -= column[:, None] * column[None, :]


@triton.jit
def substitute_down(factor, b, size, BLOCK_M: tl.constexpr):
    """Return `L^-1 b` for L in memory."""
    slots = tl.arange(0, BLOCK_M)
    for j in range(size):
        column = tl.load(factor + slots * size + j, mask=(slots > j) & (slots < size), other=0.0)
        row = tl.sum(tl.where(slots[:, None] == j, b, 0.0), 0) / tl.load(factor + j * (size + 1))
        b = tl.where(slots[:, None] == j, row[None, :], b - column[:, None] * row[None, :])
    return b


@triton.jit
def substitute_up(factor, b, size, BLOCK_M: tl.constexpr):
    """Return `L^-T b` for L in memory."""
    slots = tl.arange(0, BLOCK_M)
    for step in range(size):
        j = size - 1 - step
        column = tl.load(factor + j * size + slots, mask=slots < j, other=0.0)
        row = tl.sum(tl.where(slots[:, None] == j, b, 0.0), 0) / tl.load(factor + j * (size + 1))
        b = tl.where(slots[:, None] == j, row[None, :], b - column[:, None] * row[None, :])
    return b


@triton.jit
def chunk_total(partial, chunks, size, BLOCK_M: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    """Sum `partial[chunk]` `[M, COLUMNS]` in the order of chunks, for the same bits in every run."""
    slots = tl.arange(0, BLOCK_M)
    total = tl.zeros((BLOCK_M, BLOCK_COLUMNS), tl.float32)
    # Several loads at a time: a single one would wait for memory in every iteration.
    for chunk in tl.range(chunks, num_stages=4):
        total += load_tile(partial + chunk * size * COLUMNS, slots, size, COLUMNS, 1, COLUMNS, BLOCK_COLUMNS)
    return total


@triton.jit
def image_step_size(
    bottleneck,
    step_size,
    heads,
    size,
    ridge,
    b_batch,
    b_head,
    b_row,
    b_column,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write alpha of the start `guarded_image` of one image, from the kernels of all its heads.

    `keep_modes` adds the safeguard of each matrix.
    """
    image = tl.program_id(0).to(tl.int64)
    bottleneck += image * b_batch
    slots = tl.arange(0, BLOCK_M)
    largest = 0.0
    for head in range(heads):
        tokens = load_tile(bottleneck + head * b_head, slots, size, b_row, b_column, D, BLOCK_D).to(tl.float32)
        a = self_gaussian(tokens, size, BLOCK_M, PRECISION)
        largest = tl.maximum(largest, tl.max(tl.sum(a, 1), 0), propagate_nan=tl.PropagateNan.ALL)
    halvings = tl.arange(0, 16)
    candidates = 2.0 / (largest * largest) * tl.exp2(-tl.minimum(halvings, MAX_HALVINGS).to(tl.float32))
    residual = tl.zeros((16,), tl.float32)
    for head in range(heads):
        tokens = load_tile(bottleneck + head * b_head, slots, size, b_row, b_column, D, BLOCK_D).to(tl.float32)
        a = self_gaussian(tokens, size, BLOCK_M, PRECISION)
        p = with_ridge(a, ridge, size, BLOCK_M)
        scaled_diagonal = candidates[:, None] * tl.sum(p * p, 0)[None, :]
        scaled_total = candidates[:, None] * squared_row_sums(a, size, ridge)[None, :]
        columns = tl.abs(1.0 - scaled_diagonal) + (scaled_total - scaled_diagonal)
        residual = tl.maximum(residual, tl.max(columns, 1))
    # The largest candidate within the bound, or the smallest of all.
    within = (residual <= RESIDUAL_BOUND) | (halvings >= MAX_HALVINGS)
    alpha = tl.max(tl.where(within, candidates, 0.0), 0)
    tl.store(step_size + image, alpha)


@triton.jit
def invert(
    bottleneck,
    w,
    scale,
    step_size,
    problem,
    size,
    iters,
    ridge,
    b_row,
    b_column,
    INVERSE: tl.constexpr,
    START: tl.constexpr,
    NORMALIZE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write W or the Cholesky factor of one problem and, if normalised, `s = rowsum(A)^(-1/2)`.

    step_size: pointer to the step size of its image, for START `guarded_image`.
    """
    slots = tl.arange(0, BLOCK_M)
    tokens = load_tile(bottleneck, slots, size, b_row, b_column, D, BLOCK_D).to(tl.float32)
    a = self_gaussian(tokens, size, BLOCK_M, PRECISION)
    if NORMALIZE:
        factor = 1.0 / tl.sqrt_rn(tl.where(slots < size, tl.sum(a, 1), 1.0))
        tl.store(scale + problem * size + slots, factor, mask=slots < size)
    p = with_ridge(a, ridge, size, BLOCK_M)
    w += problem * size * size
    if INVERSE == "newton":
        # Products on ordinary cores would take more registers than the pass over tokens in the same kernel.
        NEWTON_PRECISION: tl.constexpr = "fp16x3" if BLOCK_M == 64 else PRECISION
        if START == "rowsum":
            alpha = rowsum_step_size(a, ridge)
        else:
            alpha = keep_modes(tl.load(step_size), a, size, ridge)
        inverse = newton(p, alpha, size, iters, NEWTON_PRECISION)
        inside = (slots[:, None] < size) & (slots[None, :] < size)
        tl.store(w + slots[:, None] * size + slots[None, :], inverse, mask=inside)
    else:
        cholesky(p, w, size, BLOCK_M)


@triton.jit
def apply_inverse(w, x, size, INVERSE: tl.constexpr, BLOCK_M: tl.constexpr, PRECISION: tl.constexpr):
    """Return `W x`, for W or the Cholesky factor in memory."""
    if INVERSE == "newton":
        slots = tl.arange(0, BLOCK_M)
        inside = (slots[:, None] < size) & (slots[None, :] < size)
        inverse = tl.load(w + slots[:, None] * size + slots[None, :], mask=inside, other=0.0)
        x = product(inverse, x, PRECISION)
    else:
        x = substitute_up(w, substitute_down(w, x, size, BLOCK_M), size, BLOCK_M)
    return x


@triton.jit
def solve_forward(
    partial,
    y,
    w,
    z,
    scale,
    size,
    chunks,
    INVERSE: tl.constexpr,
    NORMALIZE: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write y and, if normalised, `z = s K1^T v`, from the chunks of `K1^T v` and the results of `invert`."""
    problem = tl.program_id(0).to(tl.int64)
    slots = tl.arange(0, BLOCK_M)
    rhs = chunk_total(partial + problem * chunks * size * DV, chunks, size, BLOCK_M, DV, BLOCK_DV)
    if NORMALIZE:
        rhs *= tl.load(scale + problem * size + slots, mask=slots < size, other=1.0)[:, None]
        store_tile(z + problem * size * DV, rhs, slots, size, DV, 1, DV, BLOCK_DV)
    solution = apply_inverse(w + problem * size * size, rhs, size, INVERSE, BLOCK_M, PRECISION)
    store_tile(y + problem * size * DV, solution, slots, size, DV, 1, DV, BLOCK_DV)


@triton.jit
def solve_backward(
    bottleneck,
    partial,
    y,
    w,
    z,
    scale,
    grad_z,
    grad_tokens,
    heads,
    size,
    chunks,
    b_batch,
    b_head,
    b_row,
    b_column,
    grad_tokens_problem,
    INVERSE: tl.constexpr,
    NORMALIZE: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write the gradient of `K1^T v` and the bottleneck tokens' gradient through A, from the chunks of `K1^T dx`.

    `dA = -(W dy') y'^T` with `y' = y / s`: Newton's closed form, and exact for Cholesky. The diagonal of A is constant.
    """
    problem = tl.program_id(0)
    bottleneck = head_pointer(bottleneck, problem, heads, b_batch, b_head)
    problem = problem.to(tl.int64)
    slots = tl.arange(0, BLOCK_M)
    tokens = load_tile(bottleneck, slots, size, b_row, b_column, D, BLOCK_D).to(tl.float32)
    solution = load_tile(y + problem * size * DV, slots, size, DV, 1, DV, BLOCK_DV)
    grad_scaled = chunk_total(partial + problem * chunks * size * DV, chunks, size, BLOCK_M, DV, BLOCK_DV)
    grad_y = grad_scaled
    if NORMALIZE:
        factor = tl.load(scale + problem * size + slots, mask=slots < size, other=1.0)
        grad_y = grad_scaled * factor[:, None]
    grad_rhs = apply_inverse(w + problem * size * size, grad_y, size, INVERSE, BLOCK_M, PRECISION)
    grad_a = -product(grad_rhs, tl.trans(solution), PRECISION)
    grad_sums = grad_rhs
    if NORMALIZE:
        # s scales z and y. z is stored as s z, so its term is divided by s; ds / drowsum = -s^3 / 2.
        rhs = load_tile(z + problem * size * DV, slots, size, DV, 1, DV, BLOCK_DV)
        grad_factor = tl.sum(grad_scaled * solution, 1) + tl.sum(grad_rhs * rhs, 1) / factor
        grad_a -= (0.5 * grad_factor * factor * factor * factor)[:, None]
        grad_sums = grad_rhs * factor[:, None]
    store_tile(grad_z + problem * size * DV, grad_sums, slots, size, DV, 1, DV, BLOCK_DV)
    weight = tl.where(slots[:, None] == slots[None, :], 0.0, grad_a * self_gaussian(tokens, size, BLOCK_M, PRECISION))
    # Each token is a row and a column of A.
    weight += tl.trans(weight)
    grad = product(weight, tokens, PRECISION) - tokens * tl.sum(weight, 1)[:, None]
    store_tile(grad_tokens + problem * grad_tokens_problem, grad, slots, size, D, 1, D, BLOCK_D)
