"""Linear attentions whose numerator is rotated by position, and whose denominator is not: MILA, RALA and MALA.

Features are `elu + 1`, and R rotates them by position. Everything inside is at least fp32.

Letters: B batch, H heads, P prefix tokens, N tokens of a map, D channels of a head.
"""

import math
from collections.abc import Callable

from torch import Tensor

from soft_vit.ops.chunked import map_tokens, sum_over_tokens
from soft_vit.ops.layout import Layout, fill_padding, merge_heads, split_heads
from soft_vit.ops.linear import elu_features
from soft_vit.ops.numerics import at_least_float32
from soft_vit.ops.rotary import rotary_tables, rotate

# Added to the normaliser.
FLOOR = 1e-6


def rotary_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    tables: tuple[Tensor, Tensor],
    turn: Callable[[Tensor, Tensor, Tensor], Tensor] = rotate,
    weight: Tensor | None = None,
) -> Tensor:
    """Return `R(q_i) . sum_j a_j R(k_j) v_j^T / (q_i . sum_j a_j k_j + 1e-6)` of features q and k.

    q, k, v and the result: `[B, H, P + N, D]`. tables, turn: the rotation, as of `rotary_tables` and `rotate`. weight:
    the a `[B, H, P + N, 1]`, of which those of padding are zero; by default each token has one over their number.
    """
    dtype, count = v.dtype, layout.num_tokens(q)

    def state(k: Tensor, v: Tensor, mask: Tensor | None, weight: Tensor | None, *tables: Tensor) -> tuple[Tensor, ...]:
        k, v = fill_padding(elu_features(k), mask), fill_padding(at_least_float32(v), mask)
        if weight is not None:
            k = k * weight
        sums = turn(k, *tables).mT @ v, k.sum(2)[..., None]
        return sums if weight is not None else tuple(x / count for x in sums)

    def read(q: Tensor, cos: Tensor, sin: Tensor, kv: Tensor, k_mean: Tensor) -> Tensor:
        q = elu_features(q)
        return (turn(q, cos, sin) @ kv * (q @ k_mean + FLOOR).reciprocal()).to(dtype)

    return map_tokens(read, (q, *tables), sum_over_tokens(state, (k, v, layout.token_mask, weight, *tables)))


def mila_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Return `R(q_i) . mean_j R(k_j) v_j^T / (q_i . mean_j k_j)` (MILA, Han et al. 2024, arXiv 2405.16605).

    R is over all heads' channels. Tensors are `[B, H, P + N, D]`.
    """
    heads = q.shape[1]
    cos, sin = rotary_tables(layout, q, heads * q.shape[3])
    if q.shape[3] % 4 == 0:
        return rotary_linear_attention(q, k, v, layout, (split_heads(cos[0], heads), split_heads(sin[0], heads)))

    # Pairs or channels that are not rotated may lie in two heads.
    def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return split_heads(rotate(merge_heads(x), cos[:, 0], sin[:, 0]), heads)

    return rotary_linear_attention(q, k, v, layout, (cos, sin), turn)


def rala_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Return `rotary_linear_attention` with keys weighted by a softmax of their products with the mean query.

    RAVLT (Fan et al. 2024, arXiv 2411.07635) as the released code computes it: `a_j = softmax_j(mean(q)^T k_j /
    sqrt(D))` of features, over the valid tokens. Tensors are `[B, H, P + N, D]`.
    """
    mask = layout.token_mask

    def features(q: Tensor, mask: Tensor | None) -> tuple[Tensor]:
        return (fill_padding(elu_features(q), mask).sum(2)[..., None],)

    def scores(k: Tensor, query: Tensor) -> Tensor:
        return elu_features(k) @ query

    (total,) = sum_over_tokens(features, (q, mask))
    query = total / layout.num_tokens(q) * q.shape[-1] ** -0.5
    weight = fill_padding(map_tokens(scores, (k,), (query,)), mask, -math.inf).mT.softmax(-1).mT
    return rotary_linear_attention(q, k, v, layout, rotary_tables(layout, q, end_point=True), weight=weight)


def mala_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Attend linearly, with a factor and a shift instead of a denominator.

    `(1 + 1 / (z_i + 1e-6)) / sqrt(D) R(q_i)^T mean_j(R(k_j) v_j^T) - z_i mean_j(v_j)`, with
    `z_i = q_i^T mean_j(k_j) / sqrt(D)`, which is not rotated: MAViT (Fan et al. 2025, arXiv 2507.00698) as the released
    code computes it. Means are over the valid tokens; tensors are `[B, H, P + N, D]`.
    """
    dtype, scale = v.dtype, q.shape[-1] ** -0.5
    cos, sin = rotary_tables(layout, q, end_point=True)
    count = layout.num_tokens(q)

    def state(k: Tensor, v: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        k, v = fill_padding(elu_features(k), mask), fill_padding(at_least_float32(v), mask)
        kv, k_mean = rotate(k, cos, sin).mT @ v, k.sum(2)[..., None]
        return kv * (scale / count), k_mean * (scale / count), v.sum(2)[:, :, None]

    def read(q: Tensor, cos: Tensor, sin: Tensor, kv: Tensor, k_mean: Tensor, v_sum: Tensor) -> Tensor:
        q = elu_features(q)
        z = q @ k_mean
        return (rotate(q, cos, sin) @ kv * (1 + 1 / (z + FLOOR)) - z * (v_sum / count)).to(dtype)

    return map_tokens(read, (q, cos, sin), sum_over_tokens(state, (k, v, layout.token_mask, cos, sin)))
