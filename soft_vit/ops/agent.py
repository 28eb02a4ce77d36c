"""Agent attention: softmax attention in two steps, through pooled queries (Han et al. 2023, arXiv 2312.08874)."""

from torch import Tensor

from soft_vit.ops.chunked import by_heads
from soft_vit.ops.landmarks import landmark_tokens
from soft_vit.ops.layout import Layout, Size
from soft_vit.ops.softmax import dot_product_attention


@by_heads
def agent_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, sr_ratio: int = 1, limit: Size | None = (7, 7), fused: bool = True
) -> Tensor:
    """Return `softmax(Q A^T) softmax(A K^T) V` through agents A, averages of q; tensors `[B, H, P + N, D]`.

    sr_ratio, limit: see `landmark_tokens`. fused: see `dot_product_attention`.
    """
    agents, exist = landmark_tokens(q, layout, sr_ratio, limit)
    gathered = dot_product_attention(agents, k, v, layout.key_mask, fused=fused)
    return dot_product_attention(q, agents, gathered, None if exist is None else exist[:, None, None], fused=fused)
