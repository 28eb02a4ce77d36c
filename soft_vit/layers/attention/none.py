"""No attention: the baseline of every comparison."""

from torch import Tensor

from soft_vit.layers.attention.base import Attention, Rotate, Traits
from soft_vit.ops.layout import Layout


class NoAttention(Attention):
    """`0` for every token: only the other layers of a model mix tokens."""

    traits = Traits("0", mask_refusal=None, needs_grid=False, qk=None)

    def attend(self, v: Tensor) -> Tensor:
        """Return zeros for tokens of any shape."""
        return 0 * v

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        return self.attend(x)
