"""What the operators in Triton count for in `torch.utils.flop_counter`: the products of the eager forms.

Shapes as in `op.py`: q `[B, H, N, D]`, bottleneck `[B, H, M, D]`, v `[B, H, N, Dv]`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from soft_vit.ops.soft.triton import newton_op, op  # noqa: F401 - the operators have to be there

Shape = Sequence[int]


@register_flop_formula(torch.ops.soft_vit.soft_attention)
def forward_flops(
    q: Shape,
    bottleneck: Shape,
    v: Shape,
    residual: Shape | None,
    inverse: str,
    normalize: bool,
    iters: int,
    *_: Any,
    **__: Any,
) -> int:
    """K1, `K1^T V` and `K1 y`; A, its inverse, `y = W z`."""
    problems, (n, d), m, dv = q[0] * q[1], q[2:], bottleneck[2], v[3]
    of_inverse = 2 * iters * m**3 if inverse == "newton" else m**3 // 6
    return 2 * problems * (n * m * (d + 2 * dv) + m * m * (d + dv) + of_inverse)


@register_flop_formula(torch.ops.soft_vit.soft_attention_backward)
def backward_flops(grad: Shape, q: Shape, bottleneck: Shape, v: Shape, *_: Any, **__: Any) -> int:
    """K1 again, `K1^T dX`, the gradients of v, K1 (twice), q and the bottleneck tokens; A again, W, dA and its two."""
    problems, (n, d), m, dv = q[0] * q[1], q[2:], bottleneck[2], v[3]
    return 2 * problems * (n * m * (3 * d + 4 * dv) + m * m * (3 * d + 2 * dv))


@register_flop_formula(torch.ops.soft_vit.newton_inverse)
def newton_flops(a: Shape, iters: int, *_: Any, **__: Any) -> int:
    """Two products a step."""
    return 2 * a[0] * 2 * iters * a[1] ** 3
