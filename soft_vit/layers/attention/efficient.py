"""Efficient attention: a softmax over features and one over tokens (Shen et al. 2018, arXiv 1812.01243)."""

import math
from typing import ClassVar

from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention
from soft_vit.ops.layout import Layout


class EfficientAttention(SelfAttention):
    """`softmax(Q) (softmax(K)^T V)`: queries normalised over their features, each feature of the keys over tokens."""

    cost: str = "N"
    needs_grid: ClassVar[bool] = False
    no_mask: str = ""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Attend to the tokens that count: `softmax(Q) (softmax(K)^T V)`."""
        return q.softmax(-1) @ (layout.keep(k, -math.inf).softmax(-2).mT @ layout.keep(v))
