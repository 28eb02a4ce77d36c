"""Magnitude-aware linear attention of MAViT (Fan et al. 2025, arXiv 2507.00698), as the released code computes it."""

from soft_vit.layers.attention.gated_rotary import GatedRotaryAttention
from soft_vit.ops.rotary_linear import mala_attention


class MALAttention(GatedRotaryAttention):
    """`(1 + 1 / z_i) / sqrt(d) R(q_i) . mean_j(R(k_j) v_j^T) - z_i mean_j(v_j)`, a convolution of values, and a gate.

    Queries and keys are features `elu + 1`, R rotates by position, and `z_i = q_i . mean_j(k_j) / sqrt(d)` makes longer
    queries sharper.
    """

    attend = staticmethod(mala_attention)
