"""Vision-RWKV: averages of all tokens without queries (`vrwkv_*`), or gated states in both directions (`vrwkv6_*`).

Duan et al., "Vision-RWKV: Efficient and Scalable Visual Perception with RWKV-Like Architectures", ICLR 2025, arXiv
2403.02308. The networks and their parameter names follow the released code, github.com/OpenGVLab/Vision-RWKV.

Letters: B batch, C channels, H x W a map, N = H * W.
"""

from typing import Any, ClassVar

import torch
from timm.layers import DropPath, LayerNorm2d, register_notrace_module
from torch import Tensor, nn

from soft_vit.layers import Attention, map_to_tokens, tokens_to_map
from soft_vit.layers.attention.rwkv import RWKVAttention, mixed, ramp, shift_quarters
from soft_vit.layers.attention.rwkv6 import RWKV6Attention
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.models import base
from soft_vit.models.vit3 import PatchEmbed
from soft_vit.ops.layout import Layout
from soft_vit.weights.adapter import Adapter

# `register_family` adds the entrypoints.
__all__ = ["VRWKV", "VRWKV6"]


class ChannelMix(nn.Module):
    """`sigmoid(receptance(.)) * value(relu(key(.))^2)` of tokens `[B, N, C]`, each mixed with its four neighbours.

    groups: see `shift_quarters`. norm: a LayerNorm of the 4 C hidden channels.
    """

    def __init__(self, dim: int, groups: int, norm: bool, drop: float, **dd: Any) -> None:
        super().__init__()
        self.groups = groups
        self.spatial_mix_k, self.spatial_mix_r = (nn.Parameter(torch.empty(1, 1, dim, **dd)) for _ in range(2))
        self.key = Linear(dim, 4 * dim, bias=False, **dd)
        self.key_norm = nn.LayerNorm(4 * dim, **dd) if norm else nn.Identity()
        self.receptance = Linear(dim, dim, bias=False, **dd)
        self.value = Linear(4 * dim, dim, bias=False, **dd)
        self.drop = nn.Dropout(drop)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, layer: int = 0, depth: int = 12) -> None:
        """Set the shares of neighbours for a block of a network of that depth, as released."""
        for share in (self.spatial_mix_k, self.spatial_mix_r):
            share.copy_(ramp(share.shape[2], 1 - layer / depth, share))

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        shifted = shift_quarters(x, Layout(feat_size), self.groups)
        hidden = self.key(mixed(x, shifted, self.spatial_mix_k)).relu()
        gate = self.receptance(mixed(x, shifted, self.spatial_mix_r)).sigmoid()
        return self.drop(gate * self.value(self.key_norm(hidden * hidden)))


@register_notrace_module
class VRWKVBlock(base.SingleBlock):
    """Attention and channel mix, each with a shortcut, on maps `[B, C, H, W]`.

    first: normalise the input, shortcut included. init_values: initial scale of the branches, with a LayerNorm behind
    each; None for no scale, and a LayerNorm before each.
    """

    def __init__(
        self,
        dim: int,
        att: Attention,
        ffn: ChannelMix,
        init_values: float | None,
        first: bool,
        drop_path: float,
        **dd: Any,
    ) -> None:
        super().__init__()
        self.init_values = init_values
        self.ln0 = nn.LayerNorm(dim, **dd) if first else nn.Identity()
        self.ln1 = nn.LayerNorm(dim, **dd)
        self.att = att
        self.ln2 = nn.LayerNorm(dim, **dd)
        self.ffn = ffn
        self.drop_path = DropPath(drop_path)
        if init_values is not None:
            self.gamma1, self.gamma2 = (nn.Parameter(torch.empty(dim, **dd)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.init_values is not None:
            for gamma in (self.gamma1, self.gamma2):
                nn.init.constant_(gamma, self.init_values)

    def apply_layers(self, x: Tensor) -> Tensor:
        feat_size = x.shape[2], x.shape[3]
        x = self.ln0(map_to_tokens(x))
        if self.init_values is None:
            x = x + self.drop_path(self.att(self.ln1(x), feat_size))
            x = x + self.drop_path(self.ffn(self.ln2(x), feat_size))
        else:
            x = torch.addcmul(x, self.gamma1, self.drop_path(self.ln1(self.att(x, feat_size))))
            x = torch.addcmul(x, self.gamma2, self.drop_path(self.ln2(self.ffn(x, feat_size))))
        return tokens_to_map(x, feat_size)


class VRWKV(base.PlainModel):
    """Averages of all tokens with decays in their distance, for images `[B, in_chans, H, W]` of at least 32 x 32.

    Images are padded with zeros on the right and below to patches of 16. Every block counts as a stage.

    init_values: of the scale of each branch; None for no scale, and a norm before each branch instead of behind it.
    wide: LayerNorms of the averages and hidden channels, and a layer of 3 C channels with tanh before the head.
    pos_img_size: the side of the images that the position embedding stays for, whatever the size of the images.
    kwargs: arguments of `PlainModel`, such as img_size, num_classes and global_pool.
    """

    attention: ClassVar[type[RWKVAttention | RWKV6Attention]] = RWKVAttention
    adapter = Adapter(
        {
            "backbone.ln1.*": "norm.*",
            "backbone.patch_embed.projection.*": "patch_embed.proj.*",
            "backbone.pos_embed": "pos_embed",
            "backbone.layers.*.att.key_norm.*": "layers.*.att.out_norm.*",
            "backbone.layers.**": "layers.**",
            "head.fc.*": "head.*",
            # With a layer before the classifier.
            "head.*.*": "head.*.*",
        }
    )

    def __init__(
        self,
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 1,
        init_values: float | None = None,
        wide: bool = False,
        pos_img_size: int | None = None,
        proj_drop_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        dd = device_and_dtype(kwargs)
        # Before the base makes the head.
        self.wide = wide
        super().__init__([embed_dim] * depth, [16] * depth, **kwargs)
        if pos_img_size is not None:
            self.pos_img_size = base.check_image_size(pos_img_size)
        self.patch_embed = PatchEmbed(self.in_chans, embed_dim, 16, **dd)
        self.init_pos_embed(embed_dim, **dd)
        (rates,) = self.drop_path_rates([depth])
        options: dict[str, Any] = {"out_norm": True} if wide else {}
        self.layers = nn.ModuleList()
        for i, rate in enumerate(rates):
            att = self.attention(embed_dim, num_heads, proj_drop=proj_drop_rate, **options, **dd)
            ffn = ChannelMix(embed_dim, num_heads, wide, proj_drop_rate, **dd)
            self.layers.append(VRWKVBlock(embed_dim, att, ffn, init_values, i == 0, rate, **dd))
        self.norm = LayerNorm2d(embed_dim, eps=1e-5, **dd)
        self.init_weights(needs_reset=False)

    def init_weights(self, needs_reset: bool = True) -> None:
        super().init_weights(needs_reset)
        nn.init.zeros_(self.pos_embed)
        blocks: Any = self.layers
        for i, block in enumerate(blocks):
            for mixer in (block.att, block.ffn):
                mixer.reset_parameters(i, len(blocks))

    def classifier(self, num_classes: int, **dd: Any) -> nn.Module:
        """Return a classifier of `[B, num_features]`, with a layer before it in the wide model."""
        if not self.wide:
            return super().classifier(num_classes, **dd)
        dim, hidden = self.num_features, 3 * self.num_features
        return nn.Sequential(Linear(dim, hidden, **dd), nn.Tanh(), Linear(hidden, num_classes, **dd))

    def get_classifier(self) -> nn.Module:
        """Return the last linear layer."""
        return self.head[-1] if isinstance(self.head, nn.Sequential) else self.head


class VRWKV6(VRWKV):
    """States of heads with gates of each token, in both directions; arguments of `VRWKV`, without wide."""

    attention = RWKV6Attention


VRWKV_MODELS: dict[str, dict[str, Any]] = {
    "vrwkv_tiny": dict(embed_dim=192),
    "vrwkv_small": dict(embed_dim=384, init_values=1.0),
    "vrwkv_base": dict(embed_dim=768, init_values=1e-5),
    "vrwkv_large": dict(embed_dim=1024, depth=24, init_values=1e-5, wide=True, pos_img_size=192),
}
VRWKV6_MODELS: dict[str, dict[str, Any]] = {
    "vrwkv6_tiny": dict(embed_dim=192, num_heads=3),
    "vrwkv6_small": dict(embed_dim=384, num_heads=6, init_values=1e-5),
    "vrwkv6_base": dict(embed_dim=768, num_heads=12, init_values=1e-5),
}


def _cfg(name: str) -> dict[str, Any]:
    if name != "vrwkv_large":
        return dict(pool_size=(14, 14))
    return dict(input_size=(3, 384, 384), pool_size=(24, 24), crop_pct=1.0, classifier="head.2")


for _cls, _models in ((VRWKV, VRWKV_MODELS), (VRWKV6, VRWKV6_MODELS)):
    base.register_family(_cls, _models, feature_indices=3, cfg=_cfg, paper_ids="arXiv:2403.02308")
