"""Newton's iteration on chip.

Its products are in fp32 on the ordinary cores (PRECISION `ieee`) or three products of fp16 terms on tensor cores. Two
fp16 terms of a matrix scaled by a power of two hold 22 bits, as two tf32 terms do, at twice the rate: 4096 problems of
49 x 49 and 20 steps, 86 GFLOP on tiles of 64 x 64, take 0.26 ms at the peak of an H200, three tf32 products 0.5 ms and
fp32 1.3 ms. In sums of more than 32 products, 22 bits add no more error than the rounding of fp32 sums, and less on
flat kernels. Shorter sums are more exact in fp32, and cheap.
"""

import triton
import triton.language as tl

from soft_vit.ops.soft.newton import MODE_BOUND as _MODE_BOUND

MODE_BOUND = tl.constexpr(_MODE_BOUND)
# Scaled entries are below 2^14, a quarter of fp16's range; the second term rounds 2^38 below the largest entry.
SCALED_EXPONENT = tl.constexpr(13)
# V P has a norm of at most 2 wherever the iteration converges, so its scale is a constant.
PRODUCT_SCALE = tl.constexpr(2.0**12)
# A step squares `I - V P`: below this square of its norm, the next one changes V by less than the rounding unit.
CONVERGED = tl.constexpr(2.0**-23)


@triton.jit
def rowsum_step_size(a, ridge):
    """Return alpha of the start `rowsum`, `V_0 = alpha P`; see `soft_vit.ops.newton_step_size`."""
    largest = tl.max(tl.sum(a, 1), 0)
    largest = tl.maximum(largest, 0.95 * (largest + ridge))
    return 1.8 / (largest * largest)


@triton.jit
def squared_row_sums(a, size, ridge):
    """Return the row sums of `P P` for a symmetric A, zero beyond size."""
    rows = tl.sum(a, 0)
    # One sum over each axis, so that threads hold the sums where they are needed.
    total = tl.sum(a * tl.sum(a, 1)[:, None], 0) + ridge * (2.0 * rows + ridge)
    return tl.where(tl.arange(0, a.shape[0]) < size, total, 0.0)


@triton.jit
def keep_modes(alpha, a, size, ridge):
    """Return alpha of the start `guarded_image` for one matrix, given that of its image."""
    # A tensor first: Triton's interpreter would make a constant of MODE_BOUND / x.
    bounded = tl.minimum(alpha, 1.0 / tl.max(squared_row_sums(a, size, ridge), 0) * MODE_BOUND)
    return tl.where(size == 1, 1.0 / ((1.0 + ridge) * (1.0 + ridge)), bounded)


@triton.jit
def with_ridge(a, ridge, size, BLOCK_M: tl.constexpr):
    """Return `A + ridge I`, zero outside of M x M."""
    slots = tl.arange(0, BLOCK_M)
    return tl.where((slots[:, None] == slots[None, :]) & (slots < size)[:, None], a + ridge, a)


@triton.jit
def power_of_two(x):
    """Return the power of two s that brings the largest |entry| of x between 2^13 and 2^14, and 1 / s."""
    largest = tl.max(tl.max(tl.abs(x), 1), 0)
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 0xFF
    exponent = tl.minimum(tl.maximum(exponent - SCALED_EXPONENT, 1), 253)
    scale = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    return scale, (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def fp16_terms(x):
    """Return two fp16 matrices whose sum is x, the larger first."""
    head = x.to(tl.float16)
    return head, (x - head.to(tl.float32)).to(tl.float16)


@triton.jit
def product_of_terms(a_0, a_1, b_0, b_1):
    """Return `(a_0 + a_1)(b_0 + b_1)` without `a_1 b_1`, small products first."""
    return tl.dot(a_0, b_0, tl.dot(a_0, b_1, tl.dot(a_1, b_0)))


@triton.jit
def after_this_step(product, step, iters, size):
    """Return the next step, or iters if later steps would not change V. product: `V P` times PRODUCT_SCALE."""
    slots = tl.arange(0, product.shape[0])
    identity = (slots[:, None] == slots[None, :]) & (slots < size)[:, None]
    rest = tl.where(identity, product - PRODUCT_SCALE, product)
    square = tl.sum(tl.sum(rest * rest, 1), 0)
    return tl.where(square <= CONVERGED * PRODUCT_SCALE * PRODUCT_SCALE, iters, step + 1)


@triton.jit
def newton(p, alpha, size, iters, PRECISION: tl.constexpr):
    """Take `iters` steps `V <- 2 V - V P V` from `alpha P`, or fewer if V converges; zeros around P stay zeros.

    If the iteration diverges, fp16 overflows and the result is NaN.
    """
    inverse = alpha * p
    if PRECISION != "ieee":
        p_scale, p_unscale = power_of_two(p)
        p_0, p_1 = fp16_terms(p * p_scale)
        step = 0
        while step < iters:
            scale, unscale = power_of_two(inverse)
            v_0, v_1 = fp16_terms(inverse * scale)
            # As `(V P) V`: left factors come from registers, so only the terms of V and P pass through shared memory.
            product = product_of_terms(v_0, v_1, p_0, p_1) * (p_unscale * unscale * PRODUCT_SCALE)
            step = after_this_step(product, step, iters, size)
            x_0, x_1 = fp16_terms(product)
            inverse = 2.0 * inverse - product_of_terms(x_0, x_1, v_0, v_1) * (unscale * (1.0 / PRODUCT_SCALE))
    else:
        # All steps: the check would need more registers, and products of small matrices are cheap.
        for _ in range(iters):
            product = tl.dot(p, inverse, input_precision=PRECISION)
            inverse = 2.0 * inverse - tl.dot(inverse, product, input_precision=PRECISION)
    return inverse
