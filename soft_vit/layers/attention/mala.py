"""Magnitude-aware linear attention of MAViT (Fan et al. 2025, arXiv 2507.00698), as the released code computes it."""

from dataclasses import replace

from torch import Tensor

from soft_vit.layers.attention.gated_rotary import GatedRotaryAttention
from soft_vit.ops.chunked import map_tokens, sum_over_tokens
from soft_vit.ops.layout import Layout, fill_padding
from soft_vit.ops.linear import elu_features
from soft_vit.ops.numerics import at_least_float32
from soft_vit.ops.rotary import rotary_tables, rotate


class MALAttention(GatedRotaryAttention):
    """`(1 + 1 / z_i) / sqrt(d) R(q_i) . mean_j(R(k_j) v_j^T) - z_i mean_j(v_j)`, a convolution of values, and a gate.

    Queries and keys are features `elu + 1`, R rotates by position, and `z_i = q_i . mean_j(k_j) / sqrt(d)` makes longer
    queries sharper.
    """

    traits = replace(GatedRotaryAttention.traits, cost="N")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Attend linearly, with a factor and a shift instead of a denominator.

        `(1 + 1 / (z_i + 1e-6)) / sqrt(D) R(q_i)^T mean_j(R(k_j) v_j^T) - z_i mean_j(v_j)`, with
        `z_i = q_i^T mean_j(k_j) / sqrt(D)`, for features `q, k = elu + 1` and the rotation by position R, which is not
        part of z. Means are over the valid tokens; everything inside is at least fp32.
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
            return (rotate(q, cos, sin) @ kv * (1 + 1 / (z + 1e-6)) - z * (v_sum / count)).to(dtype)

        return map_tokens(read, (q, cos, sin), sum_over_tokens(state, (k, v, layout.token_mask, cos, sin)))
