"""The feed-forward layer of a block, and how to compute it in less time or memory."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from timm.layers import register_notrace_function, register_notrace_module, to_2tuple
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from soft_vit.layers.embed import map_to_tokens, tokens_to_map
from soft_vit.layers.plain import Linear, ShortcutConv, is_fused, linear_act, may_read_weight

# Elements of a hidden map. The allocator keeps memory of this size, and takes larger memory from the system each time.
HIDDEN_SIZE = 4 << 20


@register_notrace_module
class Mlp(nn.Module):
    """`fc2(norm(drop(act(fc1(x)))))` on tokens `[B, N, C]`, with the arguments and the names of timm's."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        act_layer: Callable[[], nn.Module] = nn.GELU,
        norm_layer: Callable[..., nn.Module] | None = None,
        bias: bool | tuple[bool, bool] = True,
        drop: float | tuple[float, float] = 0.0,
        **dd: Any,
    ) -> None:
        super().__init__()
        hidden, biases, rates = hidden_features or in_features, to_2tuple(bias), to_2tuple(drop)
        self.fc1 = Linear(in_features, hidden, bias=biases[0], **dd)
        self.act = act_layer()
        self.drop1 = nn.Dropout(rates[0])
        self.norm = nn.Identity() if norm_layer is None else norm_layer(hidden, **dd)
        self.fc2 = Linear(hidden, out_features or in_features, bias=biases[1], **dd)
        self.drop2 = nn.Dropout(rates[1])

    def forward(self, x: Tensor) -> Tensor:
        is_large = is_fused(x, self.fc1) and self.fc1.out_features * x[..., 0].numel() > HIDDEN_SIZE
        if is_large and may_read_weight(*self.children()):
            parts = x.flatten(0, -2).split(max(1, HIDDEN_SIZE // self.fc1.out_features))
            return torch.cat([self.feed_forward(part) for part in parts]).unflatten(0, x.shape[:-1])
        return self.feed_forward(x)

    def feed_forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.drop1(linear_act(x, self.fc1, self.act)))
        return self.drop2(self.fc2(x))


class ConvMlp(nn.Module):
    """`fc2(gelu(u + dwc(u)))` with `u = gelu(fc1(x))` on tokens `[B, N, C]`; dwc is a depthwise convolution."""

    conv_name: ClassVar[str] = "dwc"
    has_second_act: ClassVar[bool] = True

    def __init__(self, dim: int, hidden_dim: int, drop: float = 0.0, **dd: Any) -> None:
        super().__init__()
        self.fc1 = Linear(dim, hidden_dim, **dd)
        self.act = nn.GELU()
        self.add_module(self.conv_name, ShortcutConv(hidden_dim, **dd))
        self.fc2 = Linear(hidden_dim, dim, **dd)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        x = getattr(self, self.conv_name)(tokens_to_map(linear_act(x, self.fc1, self.act), feat_size))
        return self.drop(self.fc2(map_to_tokens(self.act(x) if self.has_second_act else x)))


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
