"""Non-causal state space duality of VSSD (Shi et al. 2024, arXiv 2407.18559): one state for the whole map.

Letters: B batch, H heads, N tokens, S channels of the state, D channels of a head.
"""

from torch import Tensor

from soft_vit.ops.chunked import map_tokens, sum_over_tokens
from soft_vit.ops.layout import WHOLE, Layout, fill_padding
from soft_vit.ops.numerics import at_least_float32


def vssd_attention(q: Tensor, k: Tensor, v: Tensor, weights: Tensor, layout: Layout = WHOLE) -> Tensor:
    """Return `q_i . sum_j weights_j k_j v_j^T` `[B, H, N, D]`, at least fp32.

    q, k: `[B, 1, N, S]`, v: `[B, H, N, D]`, weights: `[B, H, N, 1]`.
    """

    def state(v: Tensor, k: Tensor, weights: Tensor, mask: Tensor | None) -> tuple[Tensor]:
        return (at_least_float32(k).mT @ fill_padding(at_least_float32(v) * at_least_float32(weights), mask),)

    def read(q: Tensor, kv: Tensor) -> Tensor:
        return at_least_float32(q) @ kv

    return map_tokens(read, (q,), sum_over_tokens(state, (v, k, weights, layout.token_mask)))
