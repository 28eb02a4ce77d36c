"""ViT3: vision transformers whose attention is trained on each image, plain (`vittt_*`) or a pyramid (`h_vittt_*`).

Han et al., "ViT3: Unlocking Test-Time Training in Vision", arXiv 2512.01643. The networks and their parameter names
follow the released code, github.com/LeapLabTHU/ViTTT.

Letters: B batch, C channels, H x W a map, N = H * W.
"""

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from timm.layers import DropPath, LayerNorm2d, register_notrace_module
from torch import Tensor, nn

from soft_vit.layers import Attention, ConvNormAct, map_to_tokens, tokens_to_map
from soft_vit.layers.attention.ttt import TTTAttention
from soft_vit.layers.embed import channels_last
from soft_vit.layers.mlp import ConvMlp, Mlp
from soft_vit.layers.plain import ShortcutConv, device_and_dtype
from soft_vit.models.base import SingleBlock, StagedModel, pad_to_multiple, register_family
from soft_vit.models.mila import MILA, rotations

# `register_family` adds the entrypoints.
__all__ = ["HViTTT", "ViTTT"]


class PatchEmbed(nn.Module):
    """Map images `[B, in_chans, H, W]`, padded with zeros on the right and below, to a map of patches.

    stride: of the patches, which overlap if it is less than patch_size, its default.
    """

    def __init__(self, in_chans: int, dim: int, patch_size: int, stride: int | None = None, **dd: Any) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_chans, dim, patch_size, stride or patch_size, **dd)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(pad_to_multiple(x, self.patch_size))


class ConvStem(nn.Module):
    """Map images `[B, in_chans, H, W]` to `[B, dim, H / 4, W / 4]` by five convolutions."""

    def __init__(self, in_chans: int, dim: int, **dd: Any) -> None:
        super().__init__()
        half = dim // 2
        unit: dict[str, Any] = dict(bias=False, **dd)
        self.conv = nn.Sequential(
            ConvNormAct(in_chans, half, stride=2, **unit),
            ConvNormAct(half, half, **unit),
            ConvNormAct(half, half, **unit),
            ConvNormAct(half, 4 * dim, stride=2, **unit),
            ConvNormAct(4 * dim, dim, kernel_size=1, act=False, **unit),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(channels_last(pad_to_multiple(x, 4)))


@register_notrace_module
class ViTTTBlock(SingleBlock):
    """A depthwise convolution, attention and an MLP, each with a shortcut, on maps `[B, C, H, W]`.

    conv: use an MLP with a convolution, and rotary position embeddings in the attention, as in the pyramid.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float,
        proj_drop: float,
        drop_path: float,
        conv: bool = True,
        eps: float = 1e-5,
        **dd: Any,
    ) -> None:
        super().__init__()
        self.conv = conv
        self.cpe = ShortcutConv(dim, **dd)
        self.norm1 = nn.LayerNorm(dim, eps=eps, **dd)
        self.attn = self.make_attention(dim, num_heads, proj_drop=proj_drop, **dd)
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim, eps=eps, **dd)
        self.mlp = (ConvMlp if conv else Mlp)(dim, int(dim * mlp_ratio), drop=proj_drop, **dd)
        self.drop_path2 = DropPath(drop_path)

    def make_attention(self, dim: int, num_heads: int, **options: Any) -> Attention:
        return TTTAttention(dim, num_heads, rope=self.conv, **options)

    def apply_layers(self, x: Tensor) -> Tensor:
        feat_size = x.shape[2], x.shape[3]
        x = map_to_tokens(self.cpe(x))
        x = x + self.drop_path1(self.attn(self.norm1(x), feat_size))
        hidden = self.norm2(x)
        hidden = self.mlp(hidden, feat_size) if self.conv else self.mlp(hidden)
        return tokens_to_map(x + self.drop_path2(hidden), feat_size)


class ViTTT(StagedModel):
    """The plain form, for images `[B, in_chans, H, W]` of at least 32 x 32, in patches of patch_size.

    Every block counts as a stage. mlp_ratio: ratio of hidden channels to channels in the MLPs. kwargs: arguments of
    `StagedModel`, such as img_size, num_classes and global_pool.
    """

    stages_name: ClassVar[str] = "blocks"
    embed_class: ClassVar[type[PatchEmbed]] = PatchEmbed
    block_class: ClassVar[type[ViTTTBlock]] = ViTTTBlock

    def __init__(
        self,
        patch_size: int = 16,
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 6,
        mlp_ratio: float = 4.0,
        proj_drop_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        dd = device_and_dtype(kwargs)
        super().__init__([embed_dim] * depth, [patch_size] * depth, **kwargs)
        self.patch_embed = self.embed_class(self.in_chans, embed_dim, patch_size, **dd)
        (rates,) = self.drop_path_rates([depth])
        common: dict[str, Any] = dict(mlp_ratio=mlp_ratio, proj_drop=proj_drop_rate, conv=False, eps=1e-6, **dd)
        self.blocks = nn.ModuleList(self.block_class(embed_dim, num_heads, drop_path=rate, **common) for rate in rates)
        self.norm = LayerNorm2d(embed_dim, eps=1e-6, **dd)
        self.init_weights(needs_reset=False)


class HViTTT(MILA):
    """The pyramid: `MILA` with another stem, other blocks, and a BatchNorm before the head, as released."""

    stem_class = ConvStem
    block_class = ViTTTBlock
    norm_class = nn.BatchNorm2d
    adapter = replace(MILA.adapter, computed=partial(rotations, name="rope.rotations"))


PLAIN_MODELS: dict[str, dict[str, Any]] = {
    "vittt_tiny": dict(embed_dim=192, depth=12, num_heads=6),
    "vittt_small": dict(embed_dim=384, depth=12, num_heads=6),
    "vittt_base": dict(embed_dim=768, depth=12, num_heads=12),
}
PYRAMID_MODELS: dict[str, dict[str, Any]] = {
    "h_vittt_tiny": dict(embed_dims=(64, 128, 320, 512), depths=(1, 3, 9, 4), num_heads=(2, 4, 10, 16)),
    "h_vittt_small": dict(embed_dims=(64, 128, 320, 512), depths=(2, 6, 18, 8), num_heads=(2, 4, 10, 16)),
    "h_vittt_base": dict(embed_dims=(96, 192, 448, 640), depths=(2, 6, 18, 8), num_heads=(3, 6, 14, 20)),
}

PAPER = "arXiv:2512.01643"
register_family(ViTTT, PLAIN_MODELS, feature_indices=3, paper_ids=PAPER, pool_size=(14, 14))
register_family(HViTTT, PYRAMID_MODELS, paper_ids=PAPER, first_conv="patch_embed.conv.0.conv")
