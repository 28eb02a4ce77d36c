"""No attention: the control that every comparison needs."""

from typing import ClassVar

from torch import Tensor

from soft_vit.layers.attention.base import Attention
from soft_vit.ops.layout import FeatSize


class NoAttention(Attention):
    """`0` in place of an attention: tokens exchange nothing here, and only what else a model has mixes them."""

    cost: str = "0"
    needs_grid: ClassVar[bool] = False
    qk_norm: ClassVar[bool] = False
    no_mask: str = ""

    def __init__(
        self, dim: int, num_heads: int, *, feat_size: FeatSize, sr_ratio: int = 1, device=None, dtype=None
    ) -> None:
        super().__init__(dim, num_heads, feat_size=feat_size)

    def attend(self, v: Tensor) -> Tensor:
        """Zeros for tokens of any shape."""
        return 0 * v

    def forward(
        self, x: Tensor, feat_size: FeatSize, num_prefix_tokens: int = 0, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        self.layout(x, feat_size, num_prefix_tokens, key_padding_mask)
        return self.attend(x)
