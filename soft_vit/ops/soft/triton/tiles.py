"""Shared by the kernels: loads and stores of tiles, products in a chosen precision, the Gaussian of products.

Precision of products, PRECISION:
- `ieee`: fp32 operands on the ordinary cores, for fp32 inputs.
- `split`: operands as sums of bf16 terms, for inputs of 16 bits. Each pair of terms that matters is one tensor-core
  product, summed in fp32. A bf16 input is one term and an fp16 input the sum of two, so their product is exact. The
  N x M kernel and M x D matrices take two terms (16 to 17 bits), fp32 bottleneck tokens three (all 24 bits).

A single term for the N x M kernel is too few, because the inverse amplifies the rounding of `K1^T v` up to 1 / ridge
times. In that product even two are too few, so the kernel has three there.

Known limit: with 16-bit q and v, gradients of fp32 bottleneck tokens have 16 to 17 bits, and about 10 where large terms
cancel; the eager form has 24. For heads of one channel, many bottleneck tokens and a Cholesky solve, their error is 3
to 8 times that of eager. A third term of y, dz and S would fix it, but needs more registers than there are.
"""

import triton
import triton.language as tl

from soft_vit.ops.soft.triton.support import INTERPRETED as _INTERPRETED

# The interpreter cannot multiply bf16 matrices; the same numbers in fp32 give the same products.
INTERPRETED = tl.constexpr(_INTERPRETED)
LOG2_E = tl.constexpr(1.4426950408889634)
# What fp32 rounds off log2(e).
LOG2_E_REST = tl.constexpr(1.9259629911266175e-08)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def nearest_bf16(x):
    """Round x to the nearest bf16, ties away from zero; the result is fp32.

    Computed in integers, because a GPU converts single numbers to bf16 in the unit that also computes exponentials. NaN
    may become a number, but then the rest of x is NaN, and so is the sum of both terms.
    """
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x8000) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def to_bf16(x):
    """Round x to the nearest bf16."""
    if INTERPRETED:
        # The interpreter truncates, so x is rounded first.
        x = nearest_bf16(x)
    return x.to(tl.bfloat16)


@triton.jit
def column_offsets(stride_column, BLOCK_COLUMNS: tl.constexpr, MULTIPLE: tl.constexpr):
    """Return the offsets of columns, `[1, BLOCK_COLUMNS]`. MULTIPLE: a number that divides stride_column."""
    offsets = tl.arange(0, BLOCK_COLUMNS)[None, :] * stride_column
    if MULTIPLE > 1:
        # Triton itself detects only multiples of 16, and would read maps of 14 x 14 tokens one by one.
        offsets = tl.multiple_of(offsets, (MULTIPLE, MULTIPLE))
    return offsets


@triton.jit
def load_tile(
    pointer,
    rows,
    num_rows,
    stride_row,
    stride_column,
    COLUMNS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    MULTIPLE: tl.constexpr = 1,
):
    """Load rows of a matrix `[num_rows, COLUMNS]`, zero outside of it.

    MULTIPLE: as in `column_offsets`; the caller declares that it divides num_rows.
    """
    columns = tl.arange(0, BLOCK_COLUMNS)
    pointers = pointer + rows[:, None] * stride_row + column_offsets(stride_column, BLOCK_COLUMNS, MULTIPLE)
    return tl.load(pointers, mask=(rows[:, None] < num_rows) & (columns[None, :] < COLUMNS), other=0.0)


@triton.jit
def load_scaled(
    pointer, scale, rows, num_rows, COLUMNS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, SCALED: tl.constexpr
):
    """Load rows of a contiguous fp32 matrix `[num_rows, COLUMNS]`, each multiplied by its scale if SCALED."""
    tile = load_tile(pointer, rows, num_rows, COLUMNS, 1, COLUMNS, BLOCK_COLUMNS)
    if SCALED:
        tile *= tl.load(scale + rows, mask=rows < num_rows, other=0.0)[:, None]
    return tile


@triton.jit
def store_tile(
    pointer,
    tile,
    rows,
    num_rows,
    stride_row,
    stride_column,
    COLUMNS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    MULTIPLE: tl.constexpr = 1,
):
    """Store an fp32 tile in the dtype of the pointer. MULTIPLE: as in `load_tile`."""
    columns = tl.arange(0, BLOCK_COLUMNS)
    pointers = pointer + rows[:, None] * stride_row + column_offsets(stride_column, BLOCK_COLUMNS, MULTIPLE)
    if pointer.dtype.element_ty == tl.bfloat16:
        tile = to_bf16(tile)
    else:
        tile = tile.to(pointer.dtype.element_ty)
    tl.store(pointers, tile, mask=(rows[:, None] < num_rows) & (columns[None, :] < COLUMNS))


@triton.jit
def head_pointer(pointer, problem, heads, stride_batch, stride_head):
    """Return the start of the matrix of one of B x H problems, in 64 bits: tensors may exceed 2^31 elements."""
    batch = (problem // heads).to(tl.int64)
    head = (problem % heads).to(tl.int64)
    return pointer + batch * stride_batch + head * stride_head


@triton.jit
def dot_bf16(a, b, acc):
    if INTERPRETED:
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc)
    return acc


@triton.jit
def two_terms(x, PRECISION: tl.constexpr):
    """Return the two bf16 terms of x under `split`, the larger first; x twice if it is bf16, or without `split`.

    Kernels split before their loops where they can. In a loop, the compiler moves the arithmetic out by itself, but
    stores the terms to shared memory in every iteration.
    """
    x_0 = x
    x_1 = x
    if PRECISION == "split" and x.dtype != tl.bfloat16:
        x = x.to(tl.float32)
        head = nearest_bf16(x)
        x_0 = head.to(tl.bfloat16)
        x_1 = to_bf16(x - head)
    return x_0, x_1


@triton.jit
def three_terms(x, PRECISION: tl.constexpr):
    """Return three terms, as `two_terms` does; the third holds the last bits of an fp32 x."""
    x_0 = x
    x_1 = x
    x_2 = x
    if PRECISION == "split" and x.dtype != tl.bfloat16:
        x = x.to(tl.float32)
        head = nearest_bf16(x)
        rest = x - head
        middle = nearest_bf16(rest)
        x_0 = head.to(tl.bfloat16)
        x_1 = middle.to(tl.bfloat16)
        x_2 = to_bf16(rest - middle)
    return x_0, x_1, x_2


@triton.jit
def dot(a_0, a_1, a_2, A_TERMS: tl.constexpr, b_0, b_1, b_2, B_TERMS: tl.constexpr, acc, PRECISION: tl.constexpr):
    """Return `acc + a b` in fp32 from the first A_TERMS terms of a and B_TERMS terms of b.

    Products of two small terms are left out where they are below the rounding of the rest; small ones are added first.
    """
    if PRECISION != "split":
        acc = tl.dot(a_0.to(tl.float32), b_0.to(tl.float32), acc, input_precision=PRECISION)
    else:
        if A_TERMS == 3:
            acc = dot_bf16(a_2, b_0, acc)
        if B_TERMS == 3:
            acc = dot_bf16(a_0, b_2, acc)
        if A_TERMS > 1 and B_TERMS > 1 and A_TERMS + B_TERMS > 4:
            acc = dot_bf16(a_1, b_1, acc)
        if B_TERMS > 1:
            acc = dot_bf16(a_0, b_1, acc)
        if A_TERMS > 1:
            acc = dot_bf16(a_1, b_0, acc)
        acc = dot_bf16(a_0, b_0, acc)
    return acc


@triton.jit
def row_sums(s_0, s_1, COLUMNS: tl.constexpr, PRECISION: tl.constexpr):
    """Return the row sums of a matrix of `two_terms`, `[I, 1]`; under `split` `[I, COLUMNS]` with all columns equal.

    Under `split` they are a product with ones: tensor cores have time for it, and threads need not exchange sums. It
    rounds as other products of these terms do, so that common terms cancel in their difference.
    """
    if PRECISION == "split":
        # Some releases of the interpreter have no bf16 constants.
        ones = tl.full((s_0.shape[1], COLUMNS), 1.0, tl.float32).to(tl.bfloat16)
        sums = tl.zeros((s_0.shape[0], COLUMNS), tl.float32)
        sums = dot(s_0, s_1, s_1, 2, ones, ones, ones, 1, sums, PRECISION)
    else:
        sums = tl.sum(s_0, 1)[:, None]
    return sums


@triton.jit
def equal_columns(x, COLUMNS: tl.constexpr):
    """Return a matrix `[I, J]` of equal columns as `[I, COLUMNS]` or `[I, 1]`, which broadcast to COLUMNS columns."""
    if x.shape[1] != COLUMNS:
        x = tl.max(x, 1)[:, None]
    return x


@triton.jit
def half_square(x, AXIS: tl.constexpr):
    """Return `||x||^2 / 2` of rows (AXIS 1) or columns (AXIS 0), in fp32."""
    x = x.to(tl.float32)
    return 0.5 * tl.sum(x * x, AXIS)


@triton.jit
def exp_accurate(x):
    """Return exp(x) for x <= 0, corrected for the rounding of x log2(e), whose effect on exp2 grows with |x|."""
    product = x * LOG2_E
    rest = tl.fma(x, LOG2_E, -product) + x * LOG2_E_REST
    power = tl.exp2(product)
    # For x = -inf, the power is 0 and the rest NaN.
    return tl.where(power > 0, power + power * (rest * LN_2), power)


@triton.jit
def gaussian(products, half_rows, half_columns, PRECISION: tl.constexpr):
    """Return `exp(-||a_i - b_j||^2 / 2)` from `a_i . b_j` and half the squares; at most 1, or NaN."""
    if PRECISION == "ieee":
        exponent = products - half_rows[:, None] - half_columns[None, :]
        kernel = exp_accurate(tl.minimum(exponent, 0.0, propagate_nan=tl.PropagateNan.ALL))
    else:
        # The change of base is part of the multiply-add of the subtraction.
        exponent = products * LOG2_E - (half_rows * LOG2_E)[:, None] - (half_columns * LOG2_E)[None, :]
        kernel = tl.exp2(tl.minimum(exponent, 0.0, propagate_nan=tl.PropagateNan.ALL))
    return kernel
