"""The feed-forward layer of a block."""

from functools import partial

import timm.layers
from torch import Tensor, nn

from soft_vit.layers.gelu import GELU
from soft_vit.layers.untouched import is_untouched
from soft_vit.ops.fused_linear import Approximation, fused_linear, has_fused_linear


class Mlp(timm.layers.Mlp):
    """`fc2(drop(gelu(fc1(x))))` on tokens `[B, N, C]`, GELU exact (`none`) or approximated (`tanh`)."""

    def __init__(
        self, dim: int, hidden_dim: int, approximate: Approximation = "none", drop: float = 0.0, device=None, dtype=None
    ) -> None:
        super().__init__(
            dim, hidden_dim, act_layer=partial(GELU, approximate=approximate), drop=drop, device=device, dtype=dtype
        )

    def forward(self, x: Tensor) -> Tensor:
        layers = ((self.fc1, nn.Linear), (self.act, GELU), (self.fc2, nn.Linear))
        if not all(is_untouched(*layer) for layer in layers) or not has_fused_linear(x, self.fc1.weight):
            return super().forward(x)
        x = self.drop1(fused_linear(x, self.fc1.weight, self.fc1.bias, self.act.approximate))
        return self.drop2(fused_linear(x, self.fc2.weight, self.fc2.bias))
