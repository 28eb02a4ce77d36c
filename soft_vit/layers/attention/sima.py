"""SimA: attention of l1-normalised queries and keys (Koohpayegani and Pirsiavash 2022, arXiv 2206.08898)."""

from soft_vit.layers.attention.base import SelfAttention, Traits
from soft_vit.ops.sima import sima_attention


class SimpleAttention(SelfAttention):
    """`Q^ (K^^T V)`, each feature of Q^ and K^ having an l1 norm of one over all tokens; no softmax, no row sums."""

    traits = Traits("N", mask_refusal=None, needs_grid=False)

    attend = staticmethod(sima_attention)
