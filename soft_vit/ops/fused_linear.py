"""A linear layer and GELU in one pass over memory, on a CPU without gradients.

Apart, the bias is written first, the product added to it, and the result read and written again for GELU. oneDNN does
all of it where the product is in cache; torch.compile uses the same operation of torch.
"""

from functools import cache
from typing import Literal

import torch
from torch import Tensor

from soft_vit.ops.numerics import are_dispatched

Approximation = Literal["none", "tanh"]


def has_fused_linear(x: Tensor, weight: Tensor) -> bool:
    """Whether `fused_linear` may stand for `F.linear(x, weight)` and what follows: on a CPU, nothing recorded.

    In fp32, and in bf16 or under its autocast where the CPU has it.
    """
    # Counters and recorders of operations are to see those that torch documents.
    if torch.is_grad_enabled() or are_dispatched(x, weight):
        return False
    return (
        x.device.type == weight.device.type == "cpu"
        and x.layout == weight.layout == torch.strided
        and _has_dtypes(x.dtype, weight.dtype)
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _has_dtypes(x: torch.dtype, weight: torch.dtype) -> bool:
    if torch.is_autocast_enabled("cpu"):
        known = {x, weight} <= {torch.float32, torch.bfloat16} and torch.get_autocast_dtype("cpu") == torch.bfloat16
        return known and has_bfloat16()
    return x == weight and (x == torch.float32 or (x == torch.bfloat16 and has_bfloat16()))


@cache
def has_bfloat16() -> bool:
    """Whether oneDNN multiplies bf16 on this CPU."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: Approximation | None = None) -> Tensor:
    """`x W^T + b`, or GELU of it, exact or approximated by tanh; x `[..., C]`, weight `[C', C]`, bias `[C']`.

    Only where `has_fused_linear`. The result has the dtype of `F.linear`, under autocast as well.
    """
    if torch.is_autocast_enabled("cpu"):
        x, weight = x.bfloat16(), weight.bfloat16()
        bias = None if bias is None else bias.bfloat16()
    if gelu is None:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], gelu)
