"""Private operations of torch, which are faster on a CPU, and the one rule for where they are taken."""

from functools import cache

import torch
from torch import Tensor

from soft_vit.ops.numerics import is_eager


def on_cpu_without_gradients(*tensors: Tensor) -> bool:
    """Return whether these are plain tensors on a CPU, and nothing differentiates or records operations on them.

    There alone, private operations and answers that depend on values replace documented operations.
    """
    return not torch.is_grad_enabled() and is_eager(*tensors) and all(x.device.type == "cpu" for x in tensors)


@cache
def has_bfloat16() -> bool:
    """Return whether oneDNN multiplies bf16 on this CPU."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def can_fuse_linear(x: Tensor, weight: Tensor) -> bool:
    """Return whether `fused_linear` takes these: in fp32, and in bf16 or under its autocast where the CPU has it."""
    if not on_cpu_without_gradients(x, weight) or not torch.backends.mkldnn.is_available():
        return False
    if not torch.backends.mkldnn.enabled or not x.layout == weight.layout == torch.strided:
        return False
    dtypes = {x.dtype, weight.dtype}
    if torch.is_autocast_enabled("cpu"):
        in_bfloat16 = torch.get_autocast_dtype("cpu") == torch.bfloat16 and dtypes <= {torch.float32, torch.bfloat16}
    else:
        in_bfloat16 = dtypes == {torch.bfloat16}
        if dtypes == {torch.float32}:
            return True
    return in_bfloat16 and has_bfloat16()


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: str | None = None) -> Tensor:
    """Return `x W^T + b`, or GELU of it, exact or approximated by tanh; x `[..., C]`, weight `[C', C]`, bias `[C']`.

    Separately, the bias is written first, the product added to it, and the result read and written again for GELU.
    oneDNN does all of it while the product is in cache, by an operation that torch.compile uses too: inference of
    soft_tiny takes 7 % longer without it at batch 1, and 12 % at batch 8.
    Only where `can_fuse_linear`. The result has the dtype of `F.linear`, under autocast as well.
    """
    if torch.is_autocast_enabled("cpu"):
        x, weight = x.bfloat16(), weight.bfloat16()
        bias = None if bias is None else bias.bfloat16()
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu" if gelu else "none", [], gelu or "")
