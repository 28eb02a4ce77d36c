"""Hydra attention: as many heads as channels, with a cosine kernel (Bolya et al. 2022, arXiv 2209.07484)."""

from typing import Any

from soft_vit.layers.attention.base import SelfAttention, Traits, check_heads
from soft_vit.ops.hydra import channel_attention


class HydraAttention(SelfAttention):
    """`q^_i * sum_j k^_j * v_j`, channel by channel: each is a head; q^ and k^ have length one over all channels.

    num_heads must divide the width, and is otherwise ignored.
    """

    traits = Traits("N", mask_refusal=None, needs_grid=False, takes_context=True, qk="channels")

    def __init__(self, dim: int, num_heads: int, **options: Any) -> None:
        check_heads(dim, num_heads)
        super().__init__(dim, dim, **options)

    attend = staticmethod(channel_attention)
