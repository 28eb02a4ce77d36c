"""Shared by the kernels: loads and stores of tiles, products in a chosen precision, the Gaussian of products.

Precision of products, PRECISION:
- `ieee`: fp32 operands on the ordinary cores. For fp32 inputs.
- `split`: operands as sums of bf16 terms, one product on tensor cores for each pair of terms that counts, in fp32. For
  inputs of 16 bits. A bf16 input is its own term, an fp16 input the sum of two: their product is exact. The N x M
  kernel and matrices of M x D take two, 16 to 17 bits, and bottleneck tokens of fp32 three, which are all 24.

A single 16-bit term for the N x M kernel would not do: the inverse amplifies the rounding of `K1^T v`, up to 1 / ridge
times. Two would not do in that product either, so there the kernel has three.

Beside 16-bit q and v, gradients of fp32 bottleneck tokens have the 16 to 17 bits of their factors where eager has 24,
and where large terms of them cancel about 10: heads of one channel, many bottleneck tokens and a Cholesky solve have 3
to 8 times the error of eager. A third term of y, dz and S together would mend that, for which registers are missing.
"""

import triton
import triton.language as tl

from soft_vit.ops.soft.triton.support import INTERPRETED as _INTERPRETED

# The interpreter multiplies the bit patterns of bf16 matrices; the same numbers in fp32 give the same products.
INTERPRETED = tl.constexpr(_INTERPRETED)
LOG2_E = tl.constexpr(1.4426950408889634)
# The rest of log2(e) that fp32 drops.
LOG2_E_REST = tl.constexpr(1.9259629911266175e-08)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def nearest_bf16(x):
    """Round x to the nearest bf16, ties away from zero; the result is fp32.

    In integers, because a GPU converts single numbers to bf16 in the unit that the exponentials are waiting for. NaN
    may become a number, but then the rest of x is NaN, and so is the sum of both terms.
    """
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x8000) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def to_bf16(x):
    """Round x to the nearest bf16."""
    if INTERPRETED:
        # The interpreter truncates, so round before.
        x = nearest_bf16(x)
    return x.to(tl.bfloat16)


@triton.jit
def column_offsets(stride_column, BLOCK_COLUMNS: tl.constexpr, MULTIPLE: tl.constexpr):
    """Where columns begin, `[1, BLOCK_COLUMNS]`; MULTIPLE: a number that divides stride_column."""
    offsets = tl.arange(0, BLOCK_COLUMNS)[None, :] * stride_column
    if MULTIPLE > 1:
        # Triton itself detects multiples of 16 only: 14 x 14 tokens in maps would be read one by one.
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
    """Rows of a matrix `[num_rows, COLUMNS]`, zero outside of it. Zeros add nothing to any sum here.

    MULTIPLE: as in `column_offsets`; the caller declares it of num_rows.
    """
    columns = tl.arange(0, BLOCK_COLUMNS)
    pointers = pointer + rows[:, None] * stride_row + column_offsets(stride_column, BLOCK_COLUMNS, MULTIPLE)
    return tl.load(pointers, mask=(rows[:, None] < num_rows) & (columns[None, :] < COLUMNS), other=0.0)


@triton.jit
def load_scaled(
    pointer, scale, rows, num_rows, COLUMNS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, SCALED: tl.constexpr
):
    """Rows of a contiguous fp32 matrix `[num_rows, COLUMNS]`, each times its scale if SCALED."""
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
    """Store an fp32 tile in the dtype of the pointer; MULTIPLE as in `load_tile`."""
    columns = tl.arange(0, BLOCK_COLUMNS)
    pointers = pointer + rows[:, None] * stride_row + column_offsets(stride_column, BLOCK_COLUMNS, MULTIPLE)
    if pointer.dtype.element_ty == tl.bfloat16:
        tile = to_bf16(tile)
    else:
        tile = tile.to(pointer.dtype.element_ty)
    tl.store(pointers, tile, mask=(rows[:, None] < num_rows) & (columns[None, :] < COLUMNS))


@triton.jit
def head_pointer(pointer, problem, heads, stride_batch, stride_head):
    """Where the matrix of one of B x H problems begins; 64 bits, because the whole tensor may exceed 2^31 elements."""
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
    """The two bf16 terms of x under `split`, the larger first; x twice where it is bf16 itself, or without `split`.

    Kernels split before their loops where they can: the compiler moves the arithmetic out of a loop by itself, but
    would store the terms to shared memory in every turn.
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
    """The same with a third term, which holds the last bits of an fp32 x."""
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
    """`acc + a b` in fp32 from the first A_TERMS and B_TERMS of the terms of a and b.

    Products of terms below the smallest kept one are left out; small ones are added first.
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
    """The sums of rows of a matrix of `two_terms`, `[I, 1]`, or under `split` `[I, COLUMNS]` with all columns equal.

    Under `split` a product with ones: tensor cores have time for it, and threads need not exchange sums. It rounds as
    other products of these terms do, so that common terms cancel in their difference.
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
    """A matrix `[I, J]` whose columns are equal, for a product with one of COLUMNS: `[I, COLUMNS]` or `[I, 1]`."""
    if x.shape[1] != COLUMNS:
        x = tl.max(x, 1)[:, None]
    return x


@triton.jit
def half_square(x, AXIS: tl.constexpr):
    """`||x||^2 / 2` of rows (AXIS 1) or columns (AXIS 0), fp32."""
    x = x.to(tl.float32)
    return 0.5 * tl.sum(x * x, AXIS)


@triton.jit
def exp_accurate(x):
    """The exponential of x <= 0, without the error of x log2(e) that the hardware's exp2 would multiply by |x|."""
    product = x * LOG2_E
    rest = tl.fma(x, LOG2_E, -product) + x * LOG2_E_REST
    power = tl.exp2(product)
    # exp2 of -inf is 0, and its rest is NaN.
    return tl.where(power > 0, power + power * (rest * LN_2), power)


@triton.jit
def gaussian(products, half_rows, half_columns, PRECISION: tl.constexpr):
    """`exp(-||a_i - b_j||^2 / 2)` from `a_i . b_j` and half the squares; never above 1, NaN where an input is."""
    if PRECISION == "ieee":
        exponent = products - half_rows[:, None] - half_columns[None, :]
        kernel = exp_accurate(tl.minimum(exponent, 0.0, propagate_nan=tl.PropagateNan.ALL))
    else:
        # The change of base rides on the multiply-add of the subtraction.
        exponent = products * LOG2_E - (half_rows * LOG2_E)[:, None] - (half_columns * LOG2_E)[None, :]
        kernel = tl.exp2(tl.minimum(exponent, 0.0, propagate_nan=tl.PropagateNan.ALL))
    return kernel
