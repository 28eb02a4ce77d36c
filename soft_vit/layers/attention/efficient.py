"""Efficient attention: a softmax over features and one over tokens (Shen et al. 2018, arXiv 1812.01243)."""

from typing import ClassVar

from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention


class EfficientAttention(SelfAttention):
    """`softmax(Q) (softmax(K)^T V)`: queries normalised over their features, each feature of the keys over tokens."""

    cost: str = "N"
    needs_grid: ClassVar[bool] = False

    def attend(self, q: Tensor, k: Tensor, v: Tensor, feat_size: tuple[int, int]) -> Tensor:
        return q.softmax(-1) @ (k.softmax(-2).mT @ v)
