"""cosFormer: linear attention reweighted by the distance of tokens (Qin et al. 2022, arXiv 2202.08791)."""

from soft_vit.layers.attention.base import SelfAttention, Traits
from soft_vit.ops.cosformer import cosformer_attention


class CosformerAttention(SelfAttention):
    """`sum_j s_ij v_j / sum_j s_ij`, `s_ij = relu(q_i) . relu(k_j) cos(pi / 2 (i - j) / N)`: near tokens weigh more.

    Distances are in raster order, as the published form is for text.
    """

    traits = Traits("N", mask_refusal=None, needs_grid=False)

    attend = staticmethod(cosformer_attention)
