"""FLOP formulas of operations that torch's counter lacks; a multiply-add counts as two, as in torch."""

from collections.abc import Callable
from math import log2, prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count


def _real_fft_flop(x: Any, dims: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Count transforms of N real numbers, or back: 5 N log2(N) / 4 multiply-adds each."""
    real = max(x, out_shape, key=prod)
    return int(2.5 * prod(real) * log2(prod(real[dim] for dim in dims)))


EXTRA_FLOPS: dict[Any, Callable[..., int]] = {
    # torch 2.11 does not count the CPU's fused kernel.
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._fft_r2c: _real_fft_flop,
    torch.ops.aten._fft_c2r: _real_fft_flop,
    # Factorisations of [..., M, M]: M^3 / 6 multiply-adds each.
    torch.ops.aten.linalg_cholesky_ex: lambda shape, *_, **__: 2 * prod(shape) * shape[-1] // 6,
    # Two triangular solves of [..., M, M] with K columns: M^2 K multiply-adds for both.
    torch.ops.aten.cholesky_solve: lambda right, factor, *_, **__: 2 * prod(factor) * right[-1],
    # One with K columns, or K rows from the right: M^2 K / 2.
    torch.ops.aten.linalg_solve_triangular: lambda factor, *_, out_shape, **__: prod(out_shape) * factor[-1],
}


def flop_counter() -> FlopCounterMode:
    """Return a context that counts the FLOPs within it, including factorisations and triangular solves."""
    return FlopCounterMode(display=False, custom_mapping=EXTRA_FLOPS)
