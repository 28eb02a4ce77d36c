"""Transformer blocks: an attention and an MLP, each with a residual connection and a LayerNorm."""

from functools import partial
from typing import Any, Literal

from timm.layers import DropPath
from torch import Tensor, nn

from soft_vit.layers.attention.base import Attention
from soft_vit.layers.mlp import Mlp, apply_in_chunks
from soft_vit.ops.numerics import at_least

DropPathMode = Literal["stochastic_depth", "dropout"]
"""Drop a block's branch for whole images (stochastic depth), or single values of it (dropout)."""


def make_drop_path(rate: float, mode: DropPathMode) -> nn.Module:
    """Return a layer for stochastic depth, or for the element-wise dropout that the released SOFT code uses instead."""
    if rate == 0:
        return nn.Identity()
    return DropPath(rate) if mode == "stochastic_depth" else nn.Dropout(rate)


class PostNormBlock(nn.Module):
    """`x = LN(x + drop(attn(x)))`, `x = LN(x + drop(mlp(x)))` on tokens `[B, N, C]`: the block of stages 1 to 3.

    mlp_chunks: number of parts of the tokens that the MLP processes in turn.
    """

    def __init__(
        self,
        dim: int,
        attn: Attention,
        *,
        mlp_ratio: float = 4.0,
        proj_drop: float = 0.0,
        drop_path: float = 0.0,
        drop_path_mode: DropPathMode = "stochastic_depth",
        mlp_chunks: int = 1,
        **dd: Any,
    ) -> None:
        super().__init__()
        self.mlp_chunks = at_least("mlp_chunks", mlp_chunks)
        self.attn = attn
        self.drop_path1 = make_drop_path(drop_path, drop_path_mode)
        self.norm1 = nn.LayerNorm(dim, eps=1e-5, **dd)
        gelu: Any = partial(nn.GELU, approximate="tanh")
        self.mlp = Mlp(dim, int(dim * mlp_ratio), act_layer=gelu, drop=proj_drop, **dd)
        self.drop_path2 = make_drop_path(drop_path, drop_path_mode)
        self.norm2 = nn.LayerNorm(dim, eps=1e-5, **dd)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the MLP to tokens `[B, N, C]`, in mlp_chunks parts."""
        return apply_in_chunks(self.mlp, x, self.mlp_chunks)

    def forward(self, x: Tensor, feat_size: tuple[int, int], num_prefix_tokens: int = 0) -> Tensor:
        x = self.norm1(x + self.drop_path1(self.attn(x, feat_size, num_prefix_tokens)))
        return self.norm2(x + self.drop_path2(self.feed_forward(x)))


class PreNormBlock(nn.Module):
    """`x = x + drop(attn(LN(x)))`, `x = x + drop(mlp(LN(x)))` on tokens `[B, N, C]`: the block of the last stage.

    mlp_chunks: number of parts of the tokens that the MLP processes in turn.
    norm_eps: of the LayerNorms.
    """

    def __init__(
        self,
        dim: int,
        attn: Attention,
        *,
        mlp_ratio: float = 4.0,
        proj_drop: float = 0.0,
        drop_path: float = 0.0,
        mlp_chunks: int = 1,
        norm_eps: float = 1e-6,
        **dd: Any,
    ) -> None:
        super().__init__()
        self.mlp_chunks = at_least("mlp_chunks", mlp_chunks)
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps, **dd)
        self.attn = attn
        self.drop_path1 = make_drop_path(drop_path, "stochastic_depth")
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps, **dd)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop, **dd)
        self.drop_path2 = make_drop_path(drop_path, "stochastic_depth")

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the MLP to tokens `[B, N, C]`, in mlp_chunks parts."""
        return apply_in_chunks(self.mlp, x, self.mlp_chunks)

    def mix(self, x: Tensor, feat_size: tuple[int, int], num_prefix_tokens: int = 0) -> Tensor:
        """Return the attention of normalised tokens `[B, N, C]`."""
        return self.attn(x, feat_size, num_prefix_tokens)

    def forward(self, x: Tensor, feat_size: tuple[int, int], num_prefix_tokens: int = 0) -> Tensor:
        x = x + self.drop_path1(self.mix(self.norm1(x), feat_size, num_prefix_tokens))
        return x + self.drop_path2(self.feed_forward(self.norm2(x)))
