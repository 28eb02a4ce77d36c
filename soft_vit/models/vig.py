"""ViG: gated linear attention in both directions, plain (`vig_*`) or a pyramid (`vig_h_*`).

Liao et al., "ViG: Linear-complexity Visual Sequence Learning with Gated Linear Attention", AAAI 2025, arXiv 2405.18425.
The networks and their parameter names follow the released code, github.com/hustvl/ViG. Vision GNN, of the same name, is
another network.

Letters: B batch, C channels, H x W a map, N = H * W.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch.nn.functional as F
from timm.layers import register_notrace_module, trunc_normal_
from torch import Tensor, nn

from soft_vit.layers.attention.gla import GatedLinearAttention
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.models import base
from soft_vit.models.vmamba import MixerBlock, MixerPyramid, reduction
from soft_vit.ops.numerics import at_least_float32
from soft_vit.weights.adapter import Adapter

# `register_family` adds the entrypoints.
__all__ = ["ViG", "ViGH"]


@register_notrace_module
class RMSNorm(nn.RMSNorm):
    """RMSNorm of tokens `[..., C]` in at least fp32, in exported files too: fp16 cannot hold squares above 256^2."""

    def forward(self, x: Tensor) -> Tensor:
        wide, weight = at_least_float32(x), at_least_float32(self.weight)
        return F.rms_norm(wide, self.normalized_shape, weight, self.eps).to(x.dtype)


@register_notrace_module
class RMSNorm2d(RMSNorm):
    """`RMSNorm` of a map `[B, C, H, W]`."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class SwiGLU(nn.Module):
    """`down_proj(silu(g) * h)` with `g, h = gate_proj(x)` on tokens `[B, N, C]`, of 8 / 3 C hidden channels each.

    multiple: to which the number of hidden channels is rounded up.
    """

    def __init__(self, dim: int, multiple: int, drop: float = 0.0, **dd: Any) -> None:
        super().__init__()
        hidden = -(-(8 * dim // 3) // multiple) * multiple
        self.gate_proj = Linear(dim, 2 * hidden, bias=False, **dd)
        self.down_proj = Linear(hidden, dim, bias=False, **dd)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        gate, x = self.gate_proj(x).chunk(2, dim=-1)
        return self.drop(self.down_proj(F.silu(gate) * x))


def make_block(
    dim: int, num_heads: int, plain: bool, drop: float, drop_path: float, dd: dict[str, Any], **options: Any
) -> MixerBlock:
    """Return a block of attention and an MLP.

    plain: a block of the plain form, which counts as a stage, with RMSNorms; otherwise with LayerNorms.
    options: of the attention.
    """
    norms = (RMSNorm(dim, eps=1e-6, **dd) if plain else nn.LayerNorm(dim, **dd) for _ in range(2))
    attn = GatedLinearAttention(dim, num_heads, qkv_bias=False, proj_drop=drop, **options, **dd)
    return MixerBlock(next(norms), attn, next(norms), SwiGLU(dim, 256 if plain else 32, drop, **dd), drop_path)


class ViG(base.PlainModel):
    """The plain form, for images `[B, in_chans, H, W]` of at least 32 x 32, in patches of 16.

    Its map has (H + 1) // 8 rows, halved and rounded up, and columns likewise. act: see `GatedLinearAttention`.
    kwargs: arguments of `PlainModel`, such as img_size, num_classes and global_pool.
    """

    stages_name: ClassVar[str] = "blocks"
    adapter = Adapter({"blocks.*.attn.o_proj.*": "blocks.*.attn.proj.*", "**": "**"})

    def __init__(
        self,
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 3,
        act: bool = False,
        proj_drop_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        dd = device_and_dtype(kwargs)
        super().__init__([embed_dim] * depth, [16] * depth, **kwargs)
        half = embed_dim // 2
        first, last = reduction(self.in_chans, half, size=9, stride=8, **dd), reduction(half, embed_dim, **dd)
        self.patch_embed = nn.Sequential()
        self.patch_embed.add_module("proj", nn.Sequential(*first, nn.SiLU(), *last))
        self.init_pos_embed(embed_dim, **dd)
        (rates,) = self.drop_path_rates([depth])
        # The released code halves the mean of both directions once more in evaluation.
        common: dict[str, Any] = dict(plain=True, drop=proj_drop_rate, act=act, scale=0.25, dd=dd)
        self.blocks = nn.ModuleList(make_block(embed_dim, num_heads, drop_path=rate, **common) for rate in rates)
        self.norm = RMSNorm2d(embed_dim, eps=1e-6, **dd)
        self.init_weights(needs_reset=False)

    def init_weights(self, needs_reset: bool = True) -> None:
        super().init_weights(needs_reset)
        trunc_normal_(self.pos_embed, std=0.02)
        for name, weight in self.blocks.named_parameters():
            if ".attn." in name and weight.ndim > 1:
                nn.init.xavier_uniform_(weight, gain=2**-2.5)

    def grids(self, img_size: tuple[int, int]) -> list[tuple[int, int]]:
        rows, columns = (((side + 1) // 8 + 1) // 2 for side in img_size)
        return [(rows, columns)] * len(self.reductions)


class ViGH(MixerPyramid):
    """The pyramid, for images `[B, in_chans, H, W]` of at least 32 x 32; each stride of 2 rounds the map up.

    embed_dims, depths, num_heads: of each stage. kwargs: arguments of `StagedModel`.
    """

    adapter = Adapter(
        {
            "**.op.o_proj.*": "**.attn.proj.*",
            "**.mlp.fc1.*": "**.mlp.gate_proj.*",
            "**.mlp.fc2.*": "**.mlp.down_proj.*",
            # Of older files.
            "**.self_attention.o_proj.*": "**.attn.proj.*",
            **MixerPyramid.names,
        }
    )

    def __init__(
        self,
        embed_dims: Sequence[int] = (96, 192, 384, 768),
        depths: Sequence[int] = (2, 2, 5, 2),
        num_heads: Sequence[int] = (3, 6, 12, 24),
        proj_drop_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        dd = device_and_dtype(kwargs)
        base.check_stages(depths, embed_dims=embed_dims, num_heads=num_heads)

        def block(stage: int, rate: float) -> nn.Module:
            return make_block(embed_dims[stage], num_heads[stage], False, proj_drop_rate, rate, dd)

        super().__init__(embed_dims, depths, block, **kwargs)


PLAIN_MODELS: dict[str, dict[str, Any]] = {
    # The released code has SiLU in the attention of the smallest alone.
    "vig_tiny": dict(embed_dim=192, num_heads=3, act=True),
    "vig_small": dict(embed_dim=384, num_heads=6),
    "vig_base": dict(embed_dim=768, num_heads=12),
}
PYRAMID_MODELS: dict[str, dict[str, Any]] = {
    "vig_h_tiny": {},
    "vig_h_small": dict(depths=(2, 2, 17, 2)),
    "vig_h_base": dict(depths=(2, 2, 17, 2), embed_dims=(128, 256, 512, 1024), num_heads=(4, 8, 16, 32)),
}

PAPER = "arXiv:2405.18425"
PLAIN_CFG: dict[str, Any] = dict(first_conv="patch_embed.proj.0", pool_size=(14, 14))
base.register_family(ViG, PLAIN_MODELS, feature_indices=3, paper_ids=PAPER, **PLAIN_CFG)
base.register_family(ViGH, PYRAMID_MODELS, paper_ids=PAPER, first_conv="patch_embed.0")
