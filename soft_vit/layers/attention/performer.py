"""Performer: softmax attention by positive random features, FAVOR+ (Choromanski et al. 2020, arXiv 2009.14794)."""

from typing import Any, get_args

import torch
from timm.layers import get_device_dtype
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention, Traits
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least, check_choice
from soft_vit.ops.performer import Kernel, default_num_features, orthogonal_random_features, performer_attention


class PerformerAttention(SelfAttention):
    """`phi(Q) (phi(K)^T V) / (phi(Q) (phi(K)^T 1))` with random features phi that estimate softmax attention.

    `phi(x)_m = exp(w_m . x - |x|^2 / 2) / sqrt(M)` for x over `d^(1/4)`: numerator and denominator have no bias. The
    cost is linear in N.

    num_features: number M of random features; by default `d ln d` for heads of d channels, and at least d. The error
        falls as `1 / sqrt(M)`.
    kernel: `softmax` (positive orthogonal random features), or `relu` (the generalised attention of the paper).

    The features are a buffer `projection` [M, d], drawn once and saved with the weights; `redraw` draws others.
    """

    traits = Traits("N", mask_refusal=None, needs_grid=False, takes_context=True)
    projection: Tensor

    def __init__(
        self, dim: int, num_heads: int, *, num_features: int | None = None, kernel: Kernel = "softmax", **options: Any
    ) -> None:
        super().__init__(dim, num_heads, **options)
        self.kernel = check_choice("kernel", kernel, get_args(Kernel))
        count = default_num_features(self.head_dim) if num_features is None else at_least("num_features", num_features)
        self.register_buffer("projection", torch.empty(count, self.head_dim, **get_device_dtype(self)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.redraw()

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw random features, from generator or else from torch's default one."""
        num_features, dim = self.projection.shape
        self.projection.copy_(orthogonal_random_features(num_features, dim, generator))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return performer_attention(q, k, v, layout, self.projection, self.kernel)
