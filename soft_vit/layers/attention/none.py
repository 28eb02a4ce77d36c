"""No attention: the baseline of every comparison."""

from typing import ClassVar

from torch import Tensor

from soft_vit.layers.attention.base import Attention, Rotate
from soft_vit.ops.layout import Layout


class NoAttention(Attention):
    """`0` for every token: only the other layers of a model mix tokens."""

    cost: str = "0"
    needs_grid: bool = False
    qk_norm: ClassVar[bool] = False
    qk_of_each_token: ClassVar[bool] = False
    no_mask: str = ""

    def attend(self, v: Tensor) -> Tensor:
        """Return zeros for tokens of any shape."""
        return 0 * v

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        return self.attend(x)
