"""The feed-forward layer of a block, and how to compute it in less time or memory."""

from collections.abc import Callable
from typing import Any, ClassVar

import timm.layers.mlp as timm_mlp
import torch
import torch.nn.functional as F
from timm.layers import register_notrace_function, register_notrace_module
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from soft_vit.layers.embed import conv_shortcut, map_to_tokens, tokens_to_map
from soft_vit.layers.plain import is_plain
from soft_vit.ops.cpu import can_fuse_linear, fused_linear, on_cpu_without_gradients
from soft_vit.ops.numerics import is_eager

# Elements of a hidden map. The allocator keeps memory of this size, and takes larger memory from the system each time.
HIDDEN_SIZE = 4 << 20


@register_notrace_module
class Mlp(timm_mlp.Mlp):
    """timm's `fc2(norm(drop(act(fc1(x)))))` on tokens `[B, N, C]`, faster if act is GELU."""

    fc1: nn.Linear  # type: ignore[assignment]  # a convolution only with use_conv
    fc2: nn.Linear  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        if is_fused(x, self.fc1) and self.fc1.out_features * x[..., 0].numel() > HIDDEN_SIZE:
            parts = x.flatten(0, -2).split(max(1, HIDDEN_SIZE // self.fc1.out_features))
            return torch.cat([self.feed_forward(part) for part in parts]).view_as(x)
        return self.feed_forward(x)

    def feed_forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.drop1(linear_gelu(x, self.fc1, self.act)))
        return self.drop2(linear(x, self.fc2))


def in_image_parts(compute: Callable[[Tensor], Tensor], x: Tensor, hidden: int) -> Tensor:
    """Return `compute(x)` of `[B, ...]`, without gradients for so few images at a time that the allocator has memory.

    hidden: elements of the largest map that compute makes of one image.
    """
    if not on_cpu_without_gradients(x) or hidden * x.shape[0] <= HIDDEN_SIZE:
        return compute(x)
    return torch.cat([compute(part) for part in x.split(max(1, HIDDEN_SIZE // hidden))])


class ConvMlp(nn.Module):
    """`fc2(gelu(u + dwc(u)))` with `u = gelu(fc1(x))` on tokens `[B, N, C]`; dwc is a depthwise convolution."""

    conv_name: ClassVar[str] = "dwc"
    has_second_act: ClassVar[bool] = True

    def __init__(self, dim: int, hidden_dim: int, drop: float = 0.0, device=None, dtype=None) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.fc1 = nn.Linear(dim, hidden_dim, **dd)
        self.act = nn.GELU()
        conv = nn.Conv2d(hidden_dim, hidden_dim, 3, padding=1, groups=hidden_dim, **dd)
        self.add_module(self.conv_name, conv)
        self.fc2 = nn.Linear(hidden_dim, dim, **dd)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        conv, act = getattr(self, self.conv_name), self.act if self.has_second_act else None

        def compute(x: Tensor) -> Tensor:
            x = conv_shortcut(tokens_to_map(linear_gelu(x, self.fc1, self.act), feat_size), conv, act)
            return self.drop(linear(map_to_tokens(x), self.fc2))

        return in_image_parts(compute, x, x.shape[1] * self.fc1.out_features)


def linear_gelu(x: Tensor, layer: nn.Linear, act: Any) -> Tensor:
    """Return `act(layer(x))` of tokens `[..., C]`, in less time and memory if both are plain layers."""
    plain = is_plain(layer, nn.Linear) and type(act) is nn.GELU
    if not plain or torch.is_grad_enabled() or not is_eager(x):
        return act(layer(x))
    if is_fused(x, layer):
        return fused_linear(x, layer.weight, layer.bias, act.approximate)
    # In place, because the hidden map is the largest tensor of a block: two would be the peak of memory.
    return torch.ops.aten.gelu_(F.linear(x, layer.weight, layer.bias), approximate=act.approximate)


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """Return `layer(x)` of tokens `[..., C]`, in one pass over memory if it is a plain layer."""
    if is_fused(x, layer):
        return fused_linear(x, layer.weight, layer.bias)
    return layer(x)


def is_fused(x: Tensor, layer: nn.Linear) -> bool:
    """Return whether to compute a layer by `fused_linear`."""
    # Not in training: reentrant checkpointing runs a block without gradients and then with them, with the same bits.
    return is_plain(layer, nn.Linear) and not layer.training and can_fuse_linear(x, layer.weight)


@register_notrace_function
def apply_in_chunks(module: nn.Module, x: Tensor, chunks: int) -> Tensor:
    """Return `module(x)`, computed for `chunks` parts of the tokens `[B, N, C]` in turn.

    module must treat each token by itself. Hidden activations exist for one part at a time (Reformer, arXiv 2001.04451,
    Sec. 3), also in backward, which computes each part again. Compiled models do not, so they save memory in inference
    only. Dropout in module draws a different mask than for all tokens at once.
    """
    if chunks == 1:
        return module(x)
    parts = torch.tensor_split(x, chunks, dim=1)
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return torch.cat([checkpoint(module, part, use_reentrant=False) for part in parts], dim=1)
    return torch.cat([module(part) for part in parts], dim=1)
