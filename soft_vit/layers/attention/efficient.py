"""Efficient attention: a softmax over features and one over tokens (Shen et al. 2018, arXiv 1812.01243)."""

from typing import ClassVar

from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention


class EfficientAttention(SelfAttention):
    """`softmax(Q) (softmax(K)^T V)`: queries normalised over their features, each feature of the keys over tokens."""

    cost: ClassVar[str] = "N"
    needs_grid: ClassVar[bool] = False

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: tuple[int, int],
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, proj_drop=proj_drop, device=device, dtype=dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, feat_size: tuple[int, int]) -> Tensor:
        return q.softmax(-1) @ (k.softmax(-2).mT @ v)
