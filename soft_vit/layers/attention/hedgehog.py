"""Hedgehog: linear attention with learned exponential features (Zhang et al. 2024, arXiv 2402.04347)."""

from typing import Any

import torch
from timm.layers import get_device_dtype
from torch import Tensor, nn

from soft_vit.layers.attention.base import SelfAttention, Traits
from soft_vit.ops.hedgehog import hedgehog_attention
from soft_vit.ops.layout import Layout


class HedgehogAttention(SelfAttention):
    """`phi(Q) (phi(K)^T V) / (phi(Q) (phi(K)^T 1))` with `phi(x) = exp([W x, -W x])`, W learned for each head.

    Queries and keys have maps W of their own, which begin as the identity.
    """

    traits = Traits("N", mask_refusal=None, needs_grid=False, takes_context=True)

    def __init__(self, dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        shape = num_heads, self.head_dim, self.head_dim
        self.q_maps, self.k_maps = (nn.Parameter(torch.empty(shape, **get_device_dtype(self))) for _ in range(2))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for maps in (self.q_maps, self.k_maps):
            maps.zero_().diagonal(dim1=1, dim2=2).fill_(1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return hedgehog_attention(q, k, v, self.q_maps, self.k_maps, layout)
