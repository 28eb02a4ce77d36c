"""FLOP formulas of operations that torch's counter lacks; a multiply-add counts as two, as in torch."""

from math import log2, prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count


def _cholesky_flop(shape: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Count factorisations of `[..., M, M]`: M^3 / 6 multiply-adds each."""
    return 2 * prod(shape) * shape[-1] // 6


def _cholesky_solve_flop(right: Any, factor: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Count two triangular solves of `[..., M, M]` with K columns: M^2 K multiply-adds for both."""
    return 2 * prod(factor) * right[-1]


def _triangular_solve_flop(factor: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Count triangular solves of `[..., M, M]` with K columns, or K rows from the right: M^2 K / 2 multiply-adds."""
    return prod(out_shape) * factor[-1]


def _fused_attention_flop(q: Any, k: Any, v: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return sdpa_flop_count(q, k, v)


def _real_fft_flop(x: Any, dims: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Count transforms of N real numbers, or back: 5 N log2(N) / 4 multiply-adds each."""
    real = max(x, out_shape, key=prod)
    return int(2.5 * prod(real) * log2(prod(real[dim] for dim in dims)))


EXTRA_FLOPS = {
    # torch 2.11 does not count the CPU's fused kernel.
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention_flop,
    torch.ops.aten._fft_r2c: _real_fft_flop,
    torch.ops.aten._fft_c2r: _real_fft_flop,
    torch.ops.aten.linalg_cholesky_ex: _cholesky_flop,
    torch.ops.aten.cholesky_solve: _cholesky_solve_flop,
    torch.ops.aten.linalg_solve_triangular: _triangular_solve_flop,
}


def flop_counter() -> FlopCounterMode:
    """Return a context that counts the FLOPs within it, including factorisations and triangular solves."""
    return FlopCounterMode(display=False, custom_mapping=EXTRA_FLOPS)
