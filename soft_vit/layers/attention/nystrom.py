"""Nystroemformer: softmax attention through landmarks (Xiong et al. 2021, arXiv 2102.03902)."""

from typing import get_args

import torch
from torch import Tensor, nn

from soft_vit.layers.attention.base import SelfAttention, grid_limit
from soft_vit.layers.attention.landmarks import Landmarks, landmark_tokens
from soft_vit.layers.attention.local_conv import head_conv, local_conv
from soft_vit.ops.numerics import check_choice
from soft_vit.ops.nystrom import PseudoInverse, nystrom_attention


def local_residual(v: Tensor, conv: nn.Conv2d, feat_size: tuple[int, int]) -> Tensor:
    """Depthwise convolution of values `[B, H, N, D]` on the map, by a convolution of maps `[..., H, H', W']`."""
    B, H, N, D = v.shape
    return head_conv(v.mT.reshape(B, H * D, *feat_size), conv, H).reshape(B, H, D, N).mT


# Leaves of symbolic tracing: they look at sizes.
torch.fx.wrap("landmark_tokens")
torch.fx.wrap("local_residual")
torch.fx.wrap("nystrom_attention")


class NystromAttention(SelfAttention):
    """`softmax(Q K~^T) softmax(Q~ K~^T)^+ softmax(Q~ K^T) V` through landmarks, plus a depthwise convolution of V.

    sr_ratio: side of the window that one landmark stands for.
    landmarks: `grid` (averages over windows of the map) or `segment` (over runs of tokens, row by row, as published
        for text).
    max_landmarks: the largest grid of landmarks, which makes the cost linear in N; None for one that grows with the
        map, to N / r^2 of them, r being sr_ratio, the cube of which the inverse costs.
    inverse, iters: see `soft_vit.ops.nystrom.nystrom_attention`.
    local_kernel: side of the depthwise convolution, odd, one kernel for each head; 0 for none; by default the next odd
        number above sr_ratio.
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
        landmarks: Landmarks = "grid",
        max_landmarks: int | tuple[int, int] | None = 7,
        inverse: PseudoInverse = "iterative",
        iters: int = 6,
        local_kernel: int | None = None,
        proj_drop: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, proj_drop=proj_drop, device=device, dtype=dtype)
        self.sr_ratio = sr_ratio
        self.landmarks = check_choice("landmarks", landmarks, get_args(Landmarks))
        self.limit = grid_limit("max_landmarks", max_landmarks)
        if self.limit is None:
            self.cost = "N^2/r^2 + N^3/r^6"
        self.inverse = check_choice("inverse", inverse, get_args(PseudoInverse))
        self.iters = iters
        self.local = local_conv(num_heads, local_kernel, sr_ratio, device=device, dtype=dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, feat_size: tuple[int, int]) -> Tensor:
        q_landmarks, k_landmarks = (
            landmark_tokens(tokens, feat_size, self.sr_ratio, self.limit, self.landmarks) for tokens in (q, k)
        )
        return nystrom_attention(q, k, v, q_landmarks, k_landmarks, self.inverse, self.iters, self.fused_attn)

    def add_residual(self, x: Tensor, v: Tensor, feat_size: tuple[int, int]) -> Tensor:
        return x if self.local is None else x + local_residual(v, self.local, feat_size)
