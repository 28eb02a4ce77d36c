"""Rank-augmented linear attention of RAVLT (Fan et al. 2024, arXiv 2411.07635), as the released code computes it."""

from soft_vit.layers.attention.gated_rotary import GatedRotaryAttention
from soft_vit.ops.rotary_linear import rala_attention


class RALAttention(GatedRotaryAttention):
    """`R(q_i) . sum_j R(a_j k_j) v_j^T / (q_i . sum_j a_j k_j)`, a convolution of values, and a gate.

    Queries and keys are features `elu + 1`, and R rotates by position. The weights `a` of the keys are a softmax over
    tokens: one row for each head, not one for each token.
    """

    attend = staticmethod(rala_attention)
