"""The feed-forward layer of a block."""

from functools import partial

import timm.layers
import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.untouched import is_untouched
from soft_vit.ops.fused_linear import Approximation, fused_linear, has_fused_linear
from soft_vit.ops.numerics import in_function_transform


class Mlp(timm.layers.Mlp):
    """`fc2(drop(gelu(fc1(x))))` on tokens `[B, N, C]`, GELU exact (`none`) or approximated (`tanh`)."""

    def __init__(
        self, dim: int, hidden_dim: int, approximate: Approximation = "none", drop: float = 0.0, device=None, dtype=None
    ) -> None:
        super().__init__(
            dim, hidden_dim, act_layer=partial(nn.GELU, approximate=approximate), drop=drop, device=device, dtype=dtype
        )

    def forward(self, x: Tensor) -> Tensor:
        layers = ((self.fc1, nn.Linear), (self.act, nn.GELU), (self.norm, nn.Identity), (self.fc2, nn.Linear))
        # Features are extracted from a traced graph by the names of its layers.
        if isinstance(x, torch.fx.Proxy) or not all(is_untouched(*layer) for layer in layers):
            return super().forward(x)
        # Gradient checkpointing runs a block without gradients first, then with them; both are to give the same bits.
        if self.training or not has_fused_linear(x, self.fc1.weight):
            return self.drop2(self.fc2(self.drop1(gelu_of_temporary(self.fc1(x), self.act.approximate))))
        x = self.drop1(fused_linear(x, self.fc1.weight, self.fc1.bias, self.act.approximate))
        return self.drop2(fused_linear(x, self.fc2.weight, self.fc2.bias))


def gelu_of_temporary(x: Tensor, approximate: Approximation) -> Tensor:
    """GELU of x, any shape; x itself is overwritten when autograd is off, so nothing else may hold it.

    In inference the hidden map of an MLP is the largest tensor of a block, and two of them set the peak of memory.
    """
    if torch.is_grad_enabled() or torch.jit.is_tracing() or in_function_transform():
        return F.gelu(x, approximate=approximate)
    return torch.ops.aten.gelu_(x, approximate=approximate)
