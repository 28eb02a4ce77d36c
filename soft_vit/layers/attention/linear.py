"""Linear attention with `phi = elu + 1` (Katharopoulos et al. 2020, arXiv 2006.16236) or `phi = relu`."""

from typing import Any

from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention, Traits
from soft_vit.ops.layout import Layout
from soft_vit.ops.linear import FEATURE_MAPS, Features, feature_attention
from soft_vit.ops.numerics import check_choice


class LinearAttention(SelfAttention):
    """`phi(q_i) sum_j phi(k_j) v_j^T / phi(q_i) sum_j phi(k_j)`, over all tokens.

    features: phi, `elu` for `elu + 1`, or `relu` (EfficientViT, Cai et al. 2022, arXiv 2205.14756).

    The causal forms, for decoders, are functions of `soft_vit.ops.linear`.
    """

    traits = Traits("N", mask_refusal=None, needs_grid=False, takes_context=True)

    def __init__(self, dim: int, num_heads: int, *, features: Features = "elu", **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        self.features = check_choice("features", features, tuple(FEATURE_MAPS))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return feature_attention(q, k, v, layout, self.features)
