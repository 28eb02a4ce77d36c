"""Linear layers and convolutions that take fewer passes over memory on a CPU without gradients.

Names of weights and results are torch's. Layers that are replaced or hooked, as by adapters, are called, never joined
with the one behind them.
"""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_module
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.utils.fusion import fuse_conv_bn_weights

from soft_vit.ops.cpu import can_fuse_linear, fused_conv, fused_linear, on_cpu_without_gradients
from soft_vit.ops.numerics import is_eager

# Activations that `fused_conv` computes.
FUSED_ACTS = {type(None): "none", nn.Identity: "none", nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "swish"}
FUSED_ACTS[nn.Hardswish] = "hardswish"


def device_and_dtype(options: dict[str, Any]) -> dict[str, Any]:
    """Return the device and the dtype in the options of a layer or a model, for its layers, which take them as `dd`."""
    return {name: options.get(name) for name in ("device", "dtype")}


def is_plain(layer: Any) -> bool:
    """Return whether a linear layer or a convolution is torch's or this module's, and its weight a parameter.

    Adapters and parametrizations change the class; pruning, weight norm and quantization change the type of the weight.
    Fake tensors stand for parameters where memory is counted; an exported model calls its layers.
    """
    if type(layer) not in (nn.Linear, Linear, nn.Conv2d) or torch.compiler.is_exporting():
        return False
    return type(layer.weight) in (nn.Parameter, FakeTensor)


def may_read_weight(layer: Any, *others: nn.Module) -> bool:
    """Return whether code may read the weight of a layer, and do what the others do, instead of calling them.

    The layer must be plain, and no call may show: none has hooks, or a forward that was replaced on the instance.
    """
    parts = (layer, *others)
    hooks = any(x._forward_hooks or x._forward_pre_hooks or x._backward_hooks or x._backward_pre_hooks for x in parts)
    return not (hooks or any("forward" in x.__dict__ for x in parts) or _has_any_global_hook()) and is_plain(layer)


def is_fused(x: Tensor, layer: nn.Linear) -> bool:
    """Return whether to compute a plain linear layer by `fused_linear`."""
    # Reentrant checkpointing runs a block twice in training, first without gradients; both must agree bit for bit.
    return not layer.training and is_plain(layer) and can_fuse_linear(x, layer.weight)


@register_notrace_module
class Linear(nn.Linear):
    """`x W^T + b` of tokens `[..., C]`."""

    def forward(self, x: Tensor) -> Tensor:
        return fused_linear(x, self.weight, self.bias) if is_fused(x, self) else F.linear(x, self.weight, self.bias)


def linear_act(x: Tensor, layer: nn.Linear, act: Any) -> Tensor:
    """Return `act(layer(x))` of tokens `[..., C]`, without gradients in one pass over a GELU."""
    if type(act) is not nn.GELU or torch.is_grad_enabled() or not is_eager(x) or not may_read_weight(layer, act):
        return act(layer(x))
    if is_fused(x, layer):
        return fused_linear(x, layer.weight, layer.bias, act.approximate)
    # In place, because the hidden map is the largest tensor of a block: two would be the peak of memory.
    return torch.ops.aten.gelu_(F.linear(x, layer.weight, layer.bias), approximate=act.approximate)


def conv_norm_act(x: Tensor, conv: Any, norm: Any = None, act: nn.Module | None = None) -> Tensor:
    """Return `act(norm(conv(x)))` of a map `[B, C, H, W]`, without gradients in one pass if possible."""
    supported = type(norm) in (type(None), nn.Identity) or (type(norm) is nn.BatchNorm2d and not norm.training)
    usual = type(conv) is nn.Conv2d and conv.dilation == (1, 1) and conv.padding_mode == "zeros"
    if not (supported and usual and on_cpu_without_gradients(x) and may_read_weight(conv, *filter(None, (norm, act)))):
        x = conv(x) if norm is None else norm(conv(x))
        return x if act is None else act(x)
    weight, bias = conv.weight, conv.bias
    if type(norm) is nn.BatchNorm2d:
        statistics: Any = norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        weight, bias = fuse_conv_bn_weights(weight, bias, *statistics)
    exact = getattr(act, "approximate", "none") == "none"
    if type(act) in FUSED_ACTS and exact and not conv.training and can_fuse_linear(x, weight):
        return fused_conv(x, weight, bias, conv.stride, conv.padding, conv.groups, FUSED_ACTS[type(act)])
    x = F.conv2d(x, weight, bias, conv.stride, conv.padding, groups=conv.groups)
    return x if act is None else act(x)


@register_notrace_module
class ShortcutConv(nn.Conv2d):
    """`x + conv(x)` of a map `[B, C, H, W]` with a 3 x 3 depthwise convolution."""

    def __init__(self, dim: int, **dd: Any) -> None:
        super().__init__(dim, dim, 3, padding=1, groups=dim, **dd)

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)
