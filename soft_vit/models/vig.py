"""ViG: gated linear attention in both directions, plain (`vig_*`) or a pyramid (`vig_h_*`).

Liao et al., "ViG: Linear-complexity Visual Sequence Learning with Gated Linear Attention", AAAI 2025, arXiv 2405.18425.
The networks and their parameter names follow the released code, github.com/hustvl/ViG. Vision GNN, of the same name, is
another network.

Letters: B batch, C channels, H x W a map, N = H * W.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch.nn.functional as F
from timm.layers import DropPath, LayerNorm2d, RmsNorm2d, register_notrace_module, trunc_normal_
from torch import Tensor, nn

from soft_vit.layers import map_to_tokens, tokens_to_map
from soft_vit.layers.attention.gla import GatedLinearAttention
from soft_vit.layers.plain import Linear
from soft_vit.models import base
from soft_vit.weights.adapter import Adapter

# `register_models` adds the entrypoints.
__all__ = ["ViG", "ViGH"]


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


@register_notrace_module
class ViGBlock(base.SingleBlock):
    """Attention and an MLP, each with a shortcut, on maps `[B, C, H, W]`.

    plain: a block of the plain form, which counts as a stage, with RMSNorms; otherwise with LayerNorms.
    options: of the attention.
    """

    def __init__(
        self, dim: int, num_heads: int, plain: bool, drop: float, drop_path: float, dd: dict[str, Any], **options: Any
    ) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(dim, eps=1e-6, **dd) if plain else nn.LayerNorm(dim, **dd)
        self.attn = GatedLinearAttention(dim, num_heads, qkv_bias=False, proj_drop=drop, **options, **dd)
        self.drop_path1 = DropPath(drop_path)
        self.mlp_norm = nn.RMSNorm(dim, eps=1e-6, **dd) if plain else nn.LayerNorm(dim, **dd)
        self.mlp = SwiGLU(dim, 256 if plain else 32, drop, **dd)
        self.drop_path2 = DropPath(drop_path)

    def apply_layers(self, x: Tensor) -> Tensor:
        feat_size = x.shape[2], x.shape[3]
        x = map_to_tokens(x)
        x = x + self.drop_path1(self.attn(self.attn_norm(x), feat_size))
        return tokens_to_map(x + self.drop_path2(self.mlp(self.mlp_norm(x))), feat_size)


def reduction(
    dim: int, out_dim: int, *between: nn.Module, size: int = 3, stride: int = 2, **dd: Any
) -> list[nn.Module]:
    """Return a convolution with a padding of one pixel, and a LayerNorm of each pixel.

    between: empty modules, as the names of released weights count them.
    """
    conv = nn.Conv2d(dim, out_dim, size, stride, padding=1, **dd)
    return [conv, *between, LayerNorm2d(out_dim, eps=1e-5, **dd)]


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
        drop_path_rate: float = 0.0,
        device=None,
        dtype=None,
        **kwargs: Any,
    ) -> None:
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__([embed_dim] * depth, [16] * depth, **kwargs, **dd)
        half = embed_dim // 2
        first, last = reduction(self.in_chans, half, size=9, stride=8, **dd), reduction(half, embed_dim, **dd)
        self.patch_embed = nn.Sequential()
        self.patch_embed.add_module("proj", nn.Sequential(*first, nn.SiLU(), *last))
        self.init_pos_embed(embed_dim, **dd)
        (rates,) = base.drop_path_rates(drop_path_rate, [depth])
        # The released code halves the mean of both directions once more in evaluation.
        common: dict[str, Any] = dict(plain=True, drop=proj_drop_rate, act=act, scale=0.25, dd=dd)
        self.blocks = nn.ModuleList(ViGBlock(embed_dim, num_heads, drop_path=rate, **common) for rate in rates)
        self.norm = RmsNorm2d(embed_dim, eps=1e-6, **dd)
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


PYRAMID_NAMES = {
    "classifier.norm.*": "norm.*",
    "classifier.head.*": "head.*",
    "patch_embed.0.*": "patch_embed.0.*",
    "patch_embed.2.*": "patch_embed.2.*",
    # Of older files.
    "patch_embed.proj.*": "patch_embed.0.*",
    "patch_embed.norm.*": "patch_embed.2.*",
    "**.op.o_proj.*": "**.attn.proj.*",
    "**.op.**": "**.attn.**",
    "**.norm.*": "**.attn_norm.*",
    "**.norm2.*": "**.mlp_norm.*",
    "**.mlp.fc1.*": "**.mlp.gate_proj.*",
    "**.mlp.fc2.*": "**.mlp.down_proj.*",
    # Of older files.
    "**.self_attention.o_proj.*": "**.attn.proj.*",
    "**.self_attention.**": "**.attn.**",
    "**.ln_1.*": "**.attn_norm.*",
    "**": "**",
}


class ViGH(base.StagedModel):
    """The pyramid, for images `[B, in_chans, H, W]` of at least 32 x 32; each stride of 2 rounds the map up.

    embed_dims, depths, num_heads: of each stage. kwargs: arguments of `StagedModel`.
    """

    adapter = Adapter(PYRAMID_NAMES)

    def __init__(
        self,
        embed_dims: Sequence[int] = (96, 192, 384, 768),
        depths: Sequence[int] = (2, 2, 5, 2),
        num_heads: Sequence[int] = (3, 6, 12, 24),
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        device=None,
        dtype=None,
        **kwargs: Any,
    ) -> None:
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        base.check_stages(depths, embed_dims=embed_dims, num_heads=num_heads)
        super().__init__(embed_dims, **kwargs, **dd)
        half, none = embed_dims[0] // 2, nn.Identity()
        stem = reduction(self.in_chans, half, none, **dd), reduction(half, embed_dims[0], none, **dd)
        self.patch_embed = nn.Sequential(*stem[0], none, nn.GELU(), *stem[1])
        self.layers = nn.ModuleList()
        for i, rates in enumerate(base.drop_path_rates(drop_path_rate, depths)):
            common: dict[str, Any] = dict(plain=False, drop=proj_drop_rate, dd=dd)
            blocks = [ViGBlock(embed_dims[i], num_heads[i], drop_path=rate, **common) for rate in rates]
            downsample = None
            if i + 1 < len(depths):
                downsample = nn.Sequential(none, *reduction(embed_dims[i], embed_dims[i + 1], none, **dd))
            self.layers.append(base.Stage(blocks, downsample))
        self.norm = LayerNorm2d(embed_dims[-1], eps=1e-5, **dd)
        self.init_weights(needs_reset=False)


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
VIG_MODELS = PLAIN_MODELS | PYRAMID_MODELS


def _cfg(name: str) -> dict[str, Any]:
    plain = dict(first_conv="patch_embed.proj.0", pool_size=(14, 14))
    body = plain if name in PLAIN_MODELS else dict(first_conv="patch_embed.0")
    return base.imagenet_cfg(paper_ids="arXiv:2405.18425", **body)


default_cfgs = base.make_default_cfgs(VIG_MODELS, _cfg)

base.register_models(ViG, PLAIN_MODELS, feature_indices=3)
base.register_models(ViGH, PYRAMID_MODELS)
