"""Rank-augmented linear attention of RAVLT (Fan et al. 2024, arXiv 2411.07635), as the released code computes it."""

import math
from dataclasses import replace

from torch import Tensor

from soft_vit.layers.attention.gated_rotary import GatedRotaryAttention
from soft_vit.ops.chunked import map_tokens, sum_over_tokens
from soft_vit.ops.layout import Layout, fill_padding
from soft_vit.ops.linear import elu_features
from soft_vit.ops.numerics import at_least_float32
from soft_vit.ops.rotary import rotary_tables, rotate


class RALAttention(GatedRotaryAttention):
    """`R(q_i) . sum_j R(a_j k_j) v_j^T / (q_i . sum_j a_j k_j)`, a convolution of values, and a gate.

    Queries and keys are features `elu + 1`, and R rotates by position. The weights `a` of the keys are a softmax over
    tokens: one row for each head, not one for each token.
    """

    traits = replace(GatedRotaryAttention.traits, cost="N")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Attend linearly, with keys weighted by a softmax of their products with the mean query.

        `R(q_i)^T mean_j(R(a_j k_j) v_j^T) / (q_i^T mean_j(a_j k_j) + 1e-6)` with features `q, k = elu + 1`, weights
        `a_j = N softmax_j(mean(q)^T k_j / sqrt(D))` of mean 1, and the rotation by position R: the denominator is not
        rotated, so weights of tokens need not sum to 1. Means are over the valid tokens; everything inside is at
        least fp32.
        """
        dtype, mask = v.dtype, layout.token_mask
        cos, sin = rotary_tables(layout, q, end_point=True)
        count = layout.num_tokens(q)

        def features(q: Tensor, mask: Tensor | None) -> tuple[Tensor]:
            return (fill_padding(elu_features(q), mask).sum(2)[..., None],)

        def scores(k: Tensor, query: Tensor) -> Tensor:
            return elu_features(k) @ query

        def state(
            k: Tensor, v: Tensor, mask: Tensor | None, weight: Tensor, cos: Tensor, sin: Tensor
        ) -> tuple[Tensor, Tensor]:
            k = fill_padding(elu_features(k), mask) * weight
            return rotate(k, cos, sin).mT @ fill_padding(at_least_float32(v), mask), k.sum(2)[..., None]

        def read(q: Tensor, cos: Tensor, sin: Tensor, kv: Tensor, k_mean: Tensor) -> Tensor:
            q = elu_features(q)
            return (rotate(q, cos, sin) @ kv * (q @ k_mean + 1e-6).reciprocal()).to(dtype)

        (total,) = sum_over_tokens(features, (q, mask))
        query = total / count * q.shape[-1] ** -0.5
        weight = fill_padding(map_tokens(scores, (k,), (query,)), mask, -math.inf).mT.softmax(-1).mT
        return map_tokens(read, (q, cos, sin), sum_over_tokens(state, (k, v, mask, weight, cos, sin)))
