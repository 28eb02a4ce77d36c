"""Agent attention: softmax attention in two steps, through pooled queries (Han et al. 2023, arXiv 2312.08874)."""

import torch
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention, grid_limit, merge_heads, split_heads
from soft_vit.layers.attention.landmarks import landmark_tokens
from soft_vit.layers.attention.local_conv import depthwise_conv
from soft_vit.ops.softmax import dot_product_attention

# A leaf of symbolic tracing: it looks at sizes.
torch.fx.wrap("landmark_tokens")


class AgentAttention(SelfAttention):
    """`softmax(Q A^T) softmax(A K^T) V` through agent tokens A, averages of queries, plus a depthwise convolution of V.

    sr_ratio: side of the window that one agent stands for.
    max_agents: the largest grid of agents, which makes the cost linear in N; None for one that grows with the map.
    local_kernel: side of the convolution, odd, with one kernel for each channel; 0 for none.

    The released code also has learned biases of agents and tokens, for one size of map; this has none.
    """

    cost: str = "N"

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        feat_size: tuple[int, int],
        sr_ratio: int = 1,
        qkv_bias: bool = True,
        max_agents: int | tuple[int, int] | None = 7,
        local_kernel: int = 3,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, proj_drop=proj_drop, device=device, dtype=dtype)
        self.sr_ratio = sr_ratio
        self.limit = grid_limit("max_agents", max_agents)
        if self.limit is None:
            self.cost = "N^2/r^2"
        self.dwconv = depthwise_conv(dim, local_kernel, device=device, dtype=dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, feat_size: tuple[int, int]) -> Tensor:
        agents = landmark_tokens(q, feat_size, self.sr_ratio, self.limit)
        gathered = dot_product_attention(agents, k, v, fused=self.fused_attn)
        return dot_product_attention(q, agents, gathered, fused=self.fused_attn)

    def add_residual(self, x: Tensor, v: Tensor, feat_size: tuple[int, int]) -> Tensor:
        if self.dwconv is None:
            return x
        maps = self.dwconv(merge_heads(v).mT.unflatten(2, feat_size))
        return x + split_heads(maps.flatten(2).mT, self.num_heads)
