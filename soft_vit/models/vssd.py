"""VSSD: non-causal state space duality in three stages, softmax attention in the last (`vssd_*`).

Shi et al., "VSSD: Vision Mamba with Non-Causal State Space Duality", ICCV 2025, arXiv 2407.18559, first version. The
network and its parameter names follow the released code, github.com/YuHengsss/VSSD, of August 2024. Stem and
downsampling are those of MILA, without its padding.

Letters: B batch, C channels, H x W the token map of a stage, N = H * W.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from soft_vit.layers import Attention
from soft_vit.layers.attention.base import Rotate, Traits, merge_heads, split_parts
from soft_vit.layers.attention.vssd import VSSDAttention
from soft_vit.layers.plain import Linear
from soft_vit.models.base import StagedModel, register_family
from soft_vit.models.mila import MILA, ConvDownsample, MILABlock, Stem
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


class VSSDBlock(MILABlock):
    """An attention and an MLP, each after a depthwise convolution, on maps `[B, C, H, W]`."""

    def add_attention(self, dim: int, num_heads: int, *, attention: Any, **options: Any) -> None:  # type: ignore[override]
        self.attn = attention(dim, num_heads, **options)

    def mix(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        return self.attn(x, feat_size)


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
        attention: Any = VSSDSoftmaxAttention if last else partial(VSSDAttention, d_state=self.d_state)
        return VSSDBlock(dim, num_heads, attention=attention, **options)


VSSD_MODELS: dict[str, dict[str, Any]] = {
    "vssd_micro": dict(embed_dims=(48, 96, 192, 384), depths=(2, 2, 8, 4), num_heads=(2, 4, 8, 16), d_state=48),
    "vssd_tiny": dict(embed_dims=(64, 128, 256, 512), depths=(2, 4, 8, 4), num_heads=(2, 4, 8, 16)),
    "vssd_small": dict(embed_dims=(64, 128, 256, 512), depths=(3, 4, 21, 5), num_heads=(2, 4, 8, 16)),
    "vssd_base": dict(embed_dims=(96, 192, 384, 768), depths=(3, 4, 21, 5), num_heads=(3, 6, 12, 24)),
}

register_family(VSSD, VSSD_MODELS, first_conv="patch_embed.conv1.conv", paper_ids="arXiv:2407.18559")
