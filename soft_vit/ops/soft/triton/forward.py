"""The forward's two passes over N: sums `K1^T v` of chunks, at the same time as the inverse; then `K1 y + residual`.

Bottleneck tokens come in blocks of at most 64. If there are several, sums have a program for each block, and outputs
loop over blocks inside of the loop over tokens.
"""

import triton
import triton.language as tl

from soft_vit.ops.soft.triton.solve import invert
from soft_vit.ops.soft.triton.tiles import (
    dot,
    gaussian,
    half_square,
    head_pointer,
    load_scaled,
    load_tile,
    store_tile,
    three_terms,
    two_terms,
)


@triton.jit
def kernel_sums(
    q,
    bottleneck,
    v,
    partial,
    w,
    scale,
    step_size,
    heads,
    num_tokens,
    num_bottleneck,
    tiles,
    iters,
    ridge,
    q_batch,
    q_head,
    q_row,
    q_column,
    b_batch,
    b_head,
    b_row,
    b_column,
    v_batch,
    v_head,
    v_row,
    v_column,
    INVERSE: tl.constexpr,
    START: tl.constexpr,
    NORMALIZE: tl.constexpr,
    BLOCK_A: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr,
    MULTIPLE: tl.constexpr,
):
    """Write `K1^T v` of a chunk of tokens and a block of bottleneck tokens to `partial[problem, chunk]` `[M, DV]`.

    Unless INVERSE is "none", the first program of a problem computes w and scale, and the others one chunk each: steps
    of `invert` wait for one another, and alone they would leave most of a GPU idle.
    """
    problem = tl.program_id(0)
    bottleneck = head_pointer(bottleneck, problem, heads, b_batch, b_head)
    FIRST: tl.constexpr = 0 if INVERSE == "none" else 1
    LANDMARK_TERMS: tl.constexpr = 1 if bottleneck.dtype.element_ty == tl.bfloat16 else 3
    Q_TERMS: tl.constexpr = 1 if q.dtype.element_ty == tl.bfloat16 else 2
    V_TERMS: tl.constexpr = 1 if v.dtype.element_ty == tl.bfloat16 else 2
    chunk = tl.program_id(1) - FIRST
    if chunk >= 0:
        q = head_pointer(q, problem, heads, q_batch, q_head)
        v = head_pointer(v, problem, heads, v_batch, v_head)
        partial += (problem.to(tl.int64) * (tl.num_programs(1) - FIRST) + chunk) * (num_bottleneck * DV)
        rows = tl.arange(0, BLOCK_N)
        slots = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
        landmarks = load_tile(bottleneck, slots, num_bottleneck, b_row, b_column, D, BLOCK_D)
        half_landmarks = half_square(landmarks, 1)
        l_0, l_1, l_2 = three_terms(landmarks, PRECISION)
        sums = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
        for tile in tl.range(tiles):
            start = (chunk * tiles + tile) * BLOCK_N
            offset = start.to(tl.int64)
            left = tl.multiple_of(num_tokens - start, MULTIPLE)
            q_tile = load_tile(q + offset * q_row, rows, left, q_row, q_column, D, BLOCK_D, MULTIPLE)
            v_tile = load_tile(v + offset * v_row, rows, left, v_row, v_column, DV, BLOCK_DV, MULTIPLE)
            q_0, q_1 = two_terms(q_tile, PRECISION)
            q_0, q_1 = tl.trans(q_0), tl.trans(q_1)
            v_0, v_1 = two_terms(v_tile, PRECISION)
            # Transposed, `[M, N]`, so that registers of this product are the left operand of the next.
            zeros = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            products = dot(l_0, l_1, l_2, LANDMARK_TERMS, q_0, q_1, q_1, Q_TERMS, zeros, PRECISION)
            kernel = gaussian(products, half_landmarks, half_square(q_tile, 1), PRECISION)
            k_0, k_1, k_2 = three_terms(kernel, PRECISION)
            # Three terms, because the inverse amplifies the rounding of this product.
            sums = dot(k_0, k_1, k_2, 3, v_0, v_1, v_1, V_TERMS, sums, PRECISION)
        store_tile(partial, sums, slots, num_bottleneck, DV, 1, DV, BLOCK_DV)
    elif INVERSE != "none":
        # Every block of bottleneck tokens has such a program, and all write the same values.
        invert(
            bottleneck,
            w,
            scale,
            step_size + problem // heads,
            problem.to(tl.int64),
            num_bottleneck,
            iters,
            ridge,
            b_row,
            b_column,
            INVERSE,
            START,
            NORMALIZE,
            D,
            BLOCK_A,
            BLOCK_D,
            "ieee" if PRECISION == "ieee" else "tf32x3",
        )


@triton.jit
def kernel_outputs(
    q,
    bottleneck,
    y,
    scale,
    residual,
    x,
    heads,
    num_tokens,
    num_bottleneck,
    tiles,
    q_batch,
    q_head,
    q_row,
    q_column,
    b_batch,
    b_head,
    b_row,
    b_column,
    r_batch,
    r_head,
    r_row,
    r_column,
    x_batch,
    x_head,
    x_row,
    x_column,
    D: tl.constexpr,
    DV: tl.constexpr,
    NORMALIZE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr,
    MULTIPLE: tl.constexpr,
):
    """Write `x = K1 (scale y) + residual` of one chunk of tokens; the sum is rounded once, to the dtype of x."""
    problem = tl.program_id(0)
    # The last chunk first: `kernel_sums` has just read it, so part of it is still in the cache.
    chunk = tl.num_programs(1) - 1 - tl.program_id(1)
    q = head_pointer(q, problem, heads, q_batch, q_head)
    x = head_pointer(x, problem, heads, x_batch, x_head)
    bottleneck = head_pointer(bottleneck, problem, heads, b_batch, b_head)
    if HAS_RESIDUAL:
        residual = head_pointer(residual, problem, heads, r_batch, r_head)
    y += problem.to(tl.int64) * (num_bottleneck * DV)
    scale += problem.to(tl.int64) * num_bottleneck
    rows = tl.arange(0, BLOCK_N)
    slots = tl.arange(0, BLOCK_M)
    LANDMARK_TERMS: tl.constexpr = 1 if bottleneck.dtype.element_ty == tl.bfloat16 else 3
    Q_TERMS: tl.constexpr = 1 if q.dtype.element_ty == tl.bfloat16 else 2
    if BLOCKS == 1:
        landmarks = load_tile(bottleneck, slots, num_bottleneck, b_row, b_column, D, BLOCK_D)
        half_landmarks = half_square(landmarks, 1)
        l_0, l_1, l_2 = three_terms(tl.trans(landmarks), PRECISION)
        y_0, y_1 = two_terms(load_scaled(y, scale, slots, num_bottleneck, DV, BLOCK_DV, NORMALIZE), PRECISION)
    for tile in tl.range(tiles):
        start = (chunk * tiles + tile) * BLOCK_N
        offset = start.to(tl.int64)
        left = tl.multiple_of(num_tokens - start, MULTIPLE)
        q_tile = load_tile(q + offset * q_row, rows, left, q_row, q_column, D, BLOCK_D, MULTIPLE)
        half_q = half_square(q_tile, 1)
        q_0, q_1 = two_terms(q_tile, PRECISION)
        out = tl.zeros((BLOCK_N, BLOCK_DV), tl.float32)
        for block in tl.range(BLOCKS):
            if BLOCKS > 1:
                slots = block * BLOCK_M + tl.arange(0, BLOCK_M)
                landmarks = load_tile(bottleneck, slots, num_bottleneck, b_row, b_column, D, BLOCK_D)
                half_landmarks = half_square(landmarks, 1)
                l_0, l_1, l_2 = three_terms(tl.trans(landmarks), PRECISION)
                y_0, y_1 = two_terms(load_scaled(y, scale, slots, num_bottleneck, DV, BLOCK_DV, NORMALIZE), PRECISION)
            zeros = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            products = dot(q_0, q_1, q_1, Q_TERMS, l_0, l_1, l_2, LANDMARK_TERMS, zeros, PRECISION)
            k_0, k_1 = two_terms(gaussian(products, half_q, half_landmarks, PRECISION), PRECISION)
            out = dot(k_0, k_1, k_1, 2, y_0, y_1, y_1, 2, out, PRECISION)
        if HAS_RESIDUAL:
            added = load_tile(residual + offset * r_row, rows, left, r_row, r_column, DV, BLOCK_DV, MULTIPLE)
            out += added.to(tl.float32)
        store_tile(x + offset * x_row, out, rows, left, x_row, x_column, DV, BLOCK_DV, MULTIPLE)
