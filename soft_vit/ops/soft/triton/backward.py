"""The second pass over N of the backward; the first is `kernel_sums` with the gradient of x for v."""

import triton
import triton.language as tl

from soft_vit.ops.soft.triton.tiles import (
    dot,
    dot_bf16,
    equal_columns,
    gaussian,
    half_square,
    head_pointer,
    load_scaled,
    load_tile,
    row_sums,
    store_tile,
    three_terms,
    two_terms,
)


@triton.jit
def kernel_gradients(
    q,
    bottleneck,
    v,
    grad,
    y,
    scale,
    grad_z,
    grad_q,
    grad_v,
    partial,
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
    v_batch,
    v_head,
    v_row,
    v_column,
    g_batch,
    g_head,
    g_row,
    g_column,
    gq_batch,
    gq_head,
    gq_row,
    gq_column,
    gv_batch,
    gv_head,
    gv_row,
    gv_column,
    partial_problem,
    D: tl.constexpr,
    DV: tl.constexpr,
    NORMALIZE: tl.constexpr,
    OF_TOKENS: tl.constexpr,
    OF_BOTTLENECK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr,
    MULTIPLE: tl.constexpr,
):
    """Write the gradients of q and v in a chunk, and its part of the bottleneck's, `partial[problem, chunk]` `[M, D]`.

    With `S = (dx (s y)^T + v dz^T) * K1`: `dq = S l - q rowsum(S)` and `dl = S^T q - l colsum(S)`. Where tokens are
    alike, both are small differences of large numbers. So products and sums take the same rounded S, whose rounding
    then cancels in the difference.

    If one block holds the bottleneck tokens, one launch computes all gradients. Otherwise sums over both N and M do not
    fit in registers: a launch with OF_TOKENS loops over blocks, and one with OF_BOTTLENECK has a program for each.
    """
    problem = tl.program_id(0)
    # The last chunk first, as in `kernel_outputs`.
    chunk = tl.num_programs(1) - 1 - tl.program_id(1)
    q = head_pointer(q, problem, heads, q_batch, q_head)
    v = head_pointer(v, problem, heads, v_batch, v_head)
    grad = head_pointer(grad, problem, heads, g_batch, g_head)
    grad_q = head_pointer(grad_q, problem, heads, gq_batch, gq_head)
    grad_v = head_pointer(grad_v, problem, heads, gv_batch, gv_head)
    bottleneck = head_pointer(bottleneck, problem, heads, b_batch, b_head)
    y += problem.to(tl.int64) * (num_bottleneck * DV)
    grad_z += problem.to(tl.int64) * (num_bottleneck * DV)
    scale += problem.to(tl.int64) * num_bottleneck
    rows = tl.arange(0, BLOCK_N)
    slots = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    LANDMARK_TERMS: tl.constexpr = 1 if bottleneck.dtype.element_ty == tl.bfloat16 else 3
    Q_TERMS: tl.constexpr = 1 if q.dtype.element_ty == tl.bfloat16 else 2
    V_TERMS: tl.constexpr = 1 if v.dtype.element_ty == tl.bfloat16 else 2
    GRAD_TERMS: tl.constexpr = 1 if grad.dtype.element_ty == tl.bfloat16 else 2
    if BLOCKS == 1:
        landmarks = load_tile(bottleneck, slots, num_bottleneck, b_row, b_column, D, BLOCK_D)
        half_landmarks = half_square(landmarks, 1)
        l_0, l_1, l_2 = three_terms(landmarks, PRECISION)
        y_0, y_1 = two_terms(load_scaled(y, scale, slots, num_bottleneck, DV, BLOCK_DV, NORMALIZE), PRECISION)
        dz_0, dz_1 = two_terms(load_tile(grad_z, slots, num_bottleneck, DV, 1, DV, BLOCK_DV), PRECISION)
        l_0t, l_1t, l_2t = tl.trans(l_0), tl.trans(l_1), tl.trans(l_2)
        y_0t, y_1t, dz_0t, dz_1t = tl.trans(y_0), tl.trans(y_1), tl.trans(dz_0), tl.trans(dz_1)
    # Few columns save registers; but without a warp group, ptxas then spills thousands of bytes.
    SUM_COLUMNS: tl.constexpr = 16 if BLOCK_N == 64 else BLOCK_D
    grad_landmarks = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    weights = tl.zeros((BLOCK_M, SUM_COLUMNS if PRECISION == "split" else 1), tl.float32)
    for tile in tl.range(tiles):
        start = (chunk * tiles + tile) * BLOCK_N
        offset = start.to(tl.int64)
        left = tl.multiple_of(num_tokens - start, MULTIPLE)
        q_tile = load_tile(q + offset * q_row, rows, left, q_row, q_column, D, BLOCK_D, MULTIPLE)
        v_tile = load_tile(v + offset * v_row, rows, left, v_row, v_column, DV, BLOCK_DV, MULTIPLE)
        grad_tile = load_tile(grad + offset * g_row, rows, left, g_row, g_column, DV, BLOCK_DV, MULTIPLE)
        half_q = half_square(q_tile, 1)
        q_0, q_1 = two_terms(q_tile, PRECISION)
        v_0, v_1 = two_terms(v_tile, PRECISION)
        g_0, g_1 = two_terms(grad_tile, PRECISION)
        grad_q_tile = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
        grad_v_tile = tl.zeros((BLOCK_N, BLOCK_DV), tl.float32)
        for block in tl.range(BLOCKS):
            if BLOCKS > 1:
                slots = block * BLOCK_M + tl.arange(0, BLOCK_M)
                landmarks = load_tile(bottleneck, slots, num_bottleneck, b_row, b_column, D, BLOCK_D)
                half_landmarks = half_square(landmarks, 1)
                l_0, l_1, l_2 = three_terms(landmarks, PRECISION)
                y_0, y_1 = two_terms(load_scaled(y, scale, slots, num_bottleneck, DV, BLOCK_DV, NORMALIZE), PRECISION)
                dz_0, dz_1 = two_terms(load_tile(grad_z, slots, num_bottleneck, DV, 1, DV, BLOCK_DV), PRECISION)
                l_0t, l_1t, l_2t = tl.trans(l_0), tl.trans(l_1), tl.trans(l_2)
                y_0t, y_1t, dz_0t, dz_1t = tl.trans(y_0), tl.trans(y_1), tl.trans(dz_0), tl.trans(dz_1)
            zeros = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            products = dot(q_0, q_1, q_1, Q_TERMS, l_0t, l_1t, l_2t, LANDMARK_TERMS, zeros, PRECISION)
            kernel = gaussian(products, half_q, half_landmarks, PRECISION)
            if OF_TOKENS:
                k_0, k_1 = two_terms(kernel, PRECISION)
                grad_v_tile = dot(k_0, k_1, k_1, 2, dz_0, dz_1, dz_1, 2, grad_v_tile, PRECISION)
                if BLOCKS == 1:
                    # Stored early to free registers.
                    store_tile(
                        grad_v + offset * gv_row, grad_v_tile, rows, left, gv_row, gv_column, DV, BLOCK_DV, MULTIPLE
                    )
            s = dot(g_0, g_1, g_1, GRAD_TERMS, y_0t, y_1t, y_1t, 2, zeros, PRECISION)
            s = dot(v_0, v_1, v_1, V_TERMS, dz_0t, dz_1t, dz_1t, 2, s, PRECISION)
            s_0, s_1 = two_terms(s * kernel, PRECISION)
            if OF_BOTTLENECK:
                s_0t, s_1t = tl.trans(s_0), tl.trans(s_1)
                if PRECISION == "split" and Q_TERMS == 2:
                    # `dot` leaves this product out, but the sums below take all of S.
                    grad_landmarks = dot_bf16(s_1t, q_1, grad_landmarks)
                grad_landmarks = dot(s_0t, s_1t, s_1t, 2, q_0, q_1, q_1, Q_TERMS, grad_landmarks, PRECISION)
                weights += row_sums(s_0t, s_1t, SUM_COLUMNS, PRECISION)
            if OF_TOKENS:
                grad_q_tile = dot(s_0, s_1, s_1, 2, l_0, l_1, l_2, LANDMARK_TERMS, grad_q_tile, PRECISION)
                grad_q_tile -= q_tile.to(tl.float32) * equal_columns(
                    row_sums(s_0, s_1, SUM_COLUMNS, PRECISION), BLOCK_D
                )
        if OF_TOKENS:
            if BLOCKS > 1:
                store_tile(grad_v + offset * gv_row, grad_v_tile, rows, left, gv_row, gv_column, DV, BLOCK_DV, MULTIPLE)
            store_tile(grad_q + offset * gq_row, grad_q_tile, rows, left, gq_row, gq_column, D, BLOCK_D, MULTIPLE)
    if OF_BOTTLENECK:
        # Loaded again to save registers.
        landmarks = load_tile(bottleneck, slots, num_bottleneck, b_row, b_column, D, BLOCK_D)
        grad_landmarks -= landmarks.to(tl.float32) * equal_columns(weights, BLOCK_D)
        partial += problem.to(tl.int64) * partial_problem + chunk * (num_bottleneck * D)
        store_tile(partial, grad_landmarks, slots, num_bottleneck, D, 1, D, BLOCK_D)
