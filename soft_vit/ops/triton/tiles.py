"""What the kernels share: loads and stores of tiles, products in a chosen precision, the Gaussian of products.

Precision of products, PRECISION:
- `ieee`: fp32 operands on the ordinary cores. For fp32 inputs.
- `tf32x3`: fp32 operands as two tf32 terms each, three products on tensor cores, about 22 bits. For fp16 inputs.
- `split`: fp32 operands as two or three bf16 terms, on tensor cores at twice the rate of tf32. For bf16 inputs, which
  are their own single term: the product of two of them is exact, and a kernel of 16 bits times v takes two products.

A single 16-bit term for the N x M kernel would not do: the inverse amplifies its rounding, up to 1 / ridge times.
"""

import triton
import triton.language as tl

from soft_vit.ops.triton.support import INTERPRETED as _INTERPRETED

# The interpreter multiplies the bit patterns of bf16 matrices; the same numbers in fp32 give the same products.
INTERPRETED = tl.constexpr(_INTERPRETED)
LOG2_E = tl.constexpr(1.4426950408889634)
# What fp32 drops of log2(e).
LOG2_E_REST = tl.constexpr(1.9259629911266175e-08)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def to_bf16(x):
    """Round x to the nearest bf16."""
    if INTERPRETED:
        # The interpreter truncates, so what is dropped is rounded away before.
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    return x.to(tl.bfloat16)


@triton.jit
def load_tile(pointer, rows, num_rows, stride_row, stride_column, COLUMNS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    """Rows of a matrix `[num_rows, COLUMNS]`, zero outside of it. Zeros add nothing to any sum here."""
    columns = tl.arange(0, BLOCK_COLUMNS)
    pointers = pointer + rows[:, None] * stride_row + columns[None, :] * stride_column
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
    pointer, tile, rows, num_rows, stride_row, stride_column, COLUMNS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr
):
    """Store an fp32 tile in the dtype of the pointer."""
    columns = tl.arange(0, BLOCK_COLUMNS)
    pointers = pointer + rows[:, None] * stride_row + columns[None, :] * stride_column
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
def dot(a, b, acc, PRECISION: tl.constexpr, A_TERMS: tl.constexpr = 2, B_TERMS: tl.constexpr = 2):
    """`acc + a b` in fp32. A_TERMS, B_TERMS: of how many bf16 terms an fp32 operand consists under `split`.

    Two terms are 16 to 17 bits, three are all 24. Products of terms below the smallest kept one are left out; small
    ones are added first.
    """
    if PRECISION != "split":
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision=PRECISION)
    else:
        a_0 = a
        b_0 = b
        if a.dtype == tl.float32:
            a_0 = to_bf16(a)
            a_rest = a - a_0.to(tl.float32)
            a_1 = to_bf16(a_rest)
            if A_TERMS == 3:
                acc = dot_bf16(to_bf16(a_rest - a_1.to(tl.float32)), b_0, acc)
        if b.dtype == tl.float32:
            b_0 = to_bf16(b)
            b_rest = b - b_0.to(tl.float32)
            b_1 = to_bf16(b_rest)
            if B_TERMS == 3:
                acc = dot_bf16(a_0, to_bf16(b_rest - b_1.to(tl.float32)), acc)
                if a.dtype == tl.float32:
                    acc = dot_bf16(a_1, b_1, acc)
            acc = dot_bf16(a_0, b_1, acc)
        if a.dtype == tl.float32:
            acc = dot_bf16(a_1, b_0, acc)
        acc = dot_bf16(a_0, b_0, acc)
    return acc


@triton.jit
def two_terms(x, PRECISION: tl.constexpr):
    """Round x to what `dot` will see of it, so that a difference of products and sums of x cancels to the same bits."""
    if PRECISION == "split":
        head = to_bf16(x).to(tl.float32)
        x = head + to_bf16(x - head).to(tl.float32)
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
