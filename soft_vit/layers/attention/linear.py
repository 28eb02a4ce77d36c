"""Linear attention with `phi = elu + 1` (Katharopoulos et al. 2020, arXiv 2006.16236)."""

from typing import ClassVar

import torch
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention
from soft_vit.ops.linear_attention import elu_features, linear_attention

# Leaves of symbolic tracing: they look at dtypes.
torch.fx.wrap("elu_features")
torch.fx.wrap("linear_attention")


class LinearAttention(SelfAttention):
    """`phi(q_i) sum_j phi(k_j) v_j^T / phi(q_i) sum_j phi(k_j)`, over all tokens.

    The causal forms, for decoders, are functions of `soft_vit.ops.linear_attention`.
    """

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
        return linear_attention(elu_features(q), elu_features(k), v)
