"""Private operations of torch that are faster on a CPU, and the rule for when they are used."""

import math
from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.numerics import is_eager

# Elements that GELU takes at once, 1 MiB in fp32.
GELU_CHUNK = 1 << 18


def on_cpu_without_gradients(*tensors: Tensor) -> bool:
    """Return whether these are plain tensors on a CPU, without gradients, and operations on them are not recorded.

    Only then may private operations or checks of values replace documented operations.
    """
    return not torch.is_grad_enabled() and is_eager(*tensors) and all(x.device.type == "cpu" for x in tensors)


def softplus(x: Tensor) -> Tensor:
    """Return `log(1 + exp(x))`, with a relative error of a few units in the last place.

    Without gradients on a CPU in a third of the time of torch's: with u the rounded 1 + e, `log(1 + e)` is
    `log(u) + (e - (u - 1)) / u` up to the square of the rounding error.
    """
    if not on_cpu_without_gradients(x):
        return F.softplus(x)
    # Above 20 the result is x in fp32 and below.
    e = x.clamp(max=20).exp_()
    u = e + 1
    e.sub_(u - 1).div_(u)
    return torch.maximum(u.log_().add_(e), x)


@cache
def has_bfloat16() -> bool:
    """Return whether oneDNN multiplies bf16 on this CPU."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def can_fuse_linear(x: Tensor, weight: Tensor) -> bool:
    """Return whether `fused_linear` supports these: fp32, or bf16 and bf16 autocast if the CPU has it."""
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
    """Return `x W^T + b`, or GELU of it, for x `[..., C]`, weight `[C', C]` and bias `[C']`; needs `can_fuse_linear`.

    gelu: `none` (exact) or `tanh`; None for no activation. The result has the dtype of `F.linear`, also under autocast.

    Separate operations write the bias, add the product to it, and read and write the result again for GELU. oneDNN does
    all of it while the product is in cache, by an operation that torch.compile uses too: without it, inference of
    soft_tiny takes 7 % longer at batch 1 and 12 % at batch 8. On CPUs with AVX2 alone, its GELU takes more time than
    it saves.
    """
    if torch.is_autocast_enabled("cpu"):
        x, weight = x.bfloat16(), weight.bfloat16()
        bias = None if bias is None else bias.bfloat16()
    if gelu is None or torch.backends.cpu.get_cpu_capability() != "AVX2":
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu" if gelu else "none", [], gelu or "")
    x = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return tanh_gelu_(x) if gelu == "tanh" else torch.ops.aten.gelu_(x)


def fused_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], groups: int, act: str
) -> Tensor:
    """Return a convolution of maps `[B, C, H, W]` and its activation; needs `can_fuse_linear`.

    act: `none`, `relu`, `gelu` (exact), `swish` or `hardswish`. The result has the dtype of `F.conv2d`, also under
    autocast.
    """
    if torch.is_autocast_enabled("cpu"):
        x, weight = x.bfloat16(), weight.bfloat16()
        bias = None if bias is None else bias.bfloat16()
    # The fused relu makes 0 of NaN.
    apart = act == "relu" or (act == "gelu" and torch.backends.cpu.get_cpu_capability() == "AVX2")
    name, approximate = "none" if apart else act, "none" if act == "gelu" else ""
    x = torch.ops.mkldnn._convolution_pointwise(x, weight, bias, padding, stride, [1, 1], groups, name, [], approximate)
    return getattr(torch.ops.aten, f"{act}_")(x) if apart else x


def tanh_gelu_(x: Tensor) -> Tensor:
    """Apply GELU with tanh in place: `x (1 + tanh(u)) / 2 = x sigmoid(2 u)` with `2 u = x (a + b x^2)`.

    torch's tanh takes four times as long as its sigmoid.
    """
    a = math.sqrt(8 / math.pi)
    for part in x.view(-1).split(GELU_CHUNK):
        part *= torch.addcmul(x.new_tensor(a), part, part, value=0.044715 * a).mul_(part).sigmoid_()
    return x
