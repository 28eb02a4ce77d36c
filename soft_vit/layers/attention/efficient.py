"""Efficient attention: a softmax over features and one over tokens (Shen et al. 2018, arXiv 1812.01243)."""

from soft_vit.layers.attention.base import SelfAttention, Traits
from soft_vit.ops.efficient import efficient_attention


class EfficientAttention(SelfAttention):
    """`softmax(Q) (softmax(K)^T V)`: queries normalised over their features, each feature of the keys over tokens."""

    traits = Traits("N", mask_refusal=None, needs_grid=False, takes_context=True)

    attend = staticmethod(efficient_attention)
