"""Agent attention: softmax attention in two steps, through pooled queries (Han et al. 2023, arXiv 2312.08874)."""

from typing import Any

from timm.layers import get_device_dtype
from torch import Tensor

from soft_vit.layers.attention.base import SelfAttention, Traits, add_to_grid, depthwise_conv, grid_maps
from soft_vit.ops.agent import agent_attention
from soft_vit.ops.landmarks import NO_MASK_ON_A_MAP, Limit, grid_limit
from soft_vit.ops.layout import Layout


class AgentAttention(SelfAttention):
    """`softmax(Q A^T) softmax(A K^T) V` through agent tokens A, averages of queries, plus a depthwise convolution of V.

    sr_ratio: side of the window that one agent stands for.
    max_agents: the largest grid of agents, which makes the cost linear in N; None for one that grows with the map.

    The convolution is 3 x 3, with one kernel for each channel. The released code also adds learned biases of agents and
    tokens, which belong to one size of map.
    """

    traits = Traits("N", "as all tokens, but left out of the agents and of the convolution")

    def __init__(self, dim: int, num_heads: int, *, max_agents: Limit = 7, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        self.limit = grid_limit("max_agents", max_agents, self.sequence)
        self.declare(cost="N" if self.limit else "N^2/r^2", mask_refusal=None if self.sequence else NO_MASK_ON_A_MAP)
        self.dwconv = depthwise_conv(dim, 3, self.sequence, **get_device_dtype(self))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return agent_attention(q, k, v, layout, self.sr_ratio, self.limit, self.fused_attn)

    def add_residual(self, x: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return add_to_grid(x, self.dwconv(grid_maps(v, layout)), layout)
