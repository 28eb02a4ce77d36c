"""VSSD: non-causal state space duality in three stages, softmax attention in the last (`vssd_*`).

Shi et al., "VSSD: Vision Mamba with Non-Causal State Space Duality", ICCV 2025, arXiv 2407.18559, first version. The
network and its parameter names follow the released code, github.com/YuHengsss/VSSD, of August 2024. Stem and
downsampling are those of MILA, without its padding.

Letters: B batch, C channels, H x W the token map of a stage, N = H * W.
"""

from typing import Any

from timm.layers import DropPath, register_notrace_module
from torch import Tensor, nn

from soft_vit.layers import Attention, map_to_tokens, tokens_to_map
from soft_vit.layers.attention.base import Rotate, Traits, merge_heads, split_parts
from soft_vit.layers.attention.vssd import VSSDAttention
from soft_vit.layers.mlp import Mlp
from soft_vit.layers.plain import Linear, ShortcutConv, device_and_dtype
from soft_vit.models.base import StagedModel, register_family
from soft_vit.models.mila import MILA, ConvDownsample, Stem
from soft_vit.ops.layout import Layout
from soft_vit.ops.softmax import softmax_attention

# `register_family` adds the entrypoints.
__all__ = ["VSSD"]


class VSSDSoftmaxAttention(Attention):
    """Softmax attention of the last stage, with the released names."""

    traits = Traits("N^2")

    def __init__(self, dim: int, num_heads: int, *, proj_drop: float = 0.0, **dd: Any) -> None:
        super().__init__(dim, num_heads, proj_drop=proj_drop)
        self.to_qkv = Linear(dim, 3 * dim, bias=False, **dd)
        self.to_out = Linear(dim, dim, **dd)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Attend by a softmax of q and k; q, k, v and the result `[B, H, N, D]`."""
        return softmax_attention(q, k, v, layout, fused=self.fused_attn)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q, k, v = split_parts(self.to_qkv(x), 3, self.num_heads)
        return self.proj_drop(self.to_out(merge_heads(self.attend(q, k, v, layout))))


class RoundedUpStem(Stem):
    """MILA's stem, `[B, C_in, H, W]` to `[B, dim, ceil(H / 4), ceil(W / 4)]`, without padding before it."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        return self.conv3(self.conv2(x) + x)


class RoundedUpDownsample(ConvDownsample):
    """MILA's downsampling, without padding before it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


@register_notrace_module
class VSSDBlock(nn.Module):
    """An attention and an MLP, each after a depthwise convolution, on maps `[B, C, H, W]`."""

    def __init__(
        self, dim: int, attn: Attention, mlp_ratio: float, proj_drop: float, drop_path: float, **dd: Any
    ) -> None:
        super().__init__()
        self.cpe1 = ShortcutConv(dim, **dd)
        self.norm1 = nn.LayerNorm(dim, **dd)
        self.attn = attn
        self.drop_path1 = DropPath(drop_path)
        self.cpe2 = ShortcutConv(dim, **dd)
        self.norm2 = nn.LayerNorm(dim, **dd)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop, **dd)
        self.drop_path2 = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        feat_size = x.shape[2], x.shape[3]
        x = map_to_tokens(self.cpe1(x))
        x = tokens_to_map(x + self.drop_path1(self.attn(self.norm1(x), feat_size)), feat_size)
        x = map_to_tokens(self.cpe2(x))
        return tokens_to_map(x + self.drop_path2(self.mlp(self.norm2(x))), feat_size)


class VSSD(MILA):
    """Stages of state space duality, the last one of softmax, for images `[B, in_chans, H, W]` of at least 32 x 32.

    Each stride of 2 rounds the map up. The cost of the last stage grows with the square of the number of tokens. The
    sums of the others grow with the map too, and nothing divides them: accuracy at sizes other than 224 is unmeasured.

    d_state: channels of the state. kwargs: arguments of `MILA`.
    """

    adapter = StagedModel.adapter
    stem_class = RoundedUpStem
    downsample_class = RoundedUpDownsample

    def __init__(self, *args: Any, d_state: int = 64, **kwargs: Any) -> None:
        # Before the base makes the blocks.
        self.d_state = d_state
        super().__init__(*args, **kwargs)

    def make_block(self, last: bool, dim: int, num_heads: int, **options: Any) -> nn.Module:
        common = dict(proj_drop=options["proj_drop"], **device_and_dtype(options))
        attn: Attention = (
            VSSDSoftmaxAttention(dim, num_heads, **common)
            if last
            else VSSDAttention(dim, num_heads, d_state=self.d_state, **common)
        )
        return VSSDBlock(dim, attn, **options)


VSSD_MODELS: dict[str, dict[str, Any]] = {
    "vssd_micro": dict(embed_dims=(48, 96, 192, 384), depths=(2, 2, 8, 4), num_heads=(2, 4, 8, 16), d_state=48),
    "vssd_tiny": dict(embed_dims=(64, 128, 256, 512), depths=(2, 4, 8, 4), num_heads=(2, 4, 8, 16)),
    "vssd_small": dict(embed_dims=(64, 128, 256, 512), depths=(3, 4, 21, 5), num_heads=(2, 4, 8, 16)),
    "vssd_base": dict(embed_dims=(96, 192, 384, 768), depths=(3, 4, 21, 5), num_heads=(3, 6, 12, 24)),
}

register_family(VSSD, VSSD_MODELS, first_conv="patch_embed.conv1.conv", paper_ids="arXiv:2407.18559")
