"""MILA, released as MLLA: a pyramid of gated blocks with linear attention.

Han et al., "Demystify Mamba in Vision: A Linear Attention Perspective", NeurIPS 2024, arXiv 2405.16605. The network and
its parameter names follow the released code, github.com/LeapLabTHU/MLLA.

Letters: B batch, C channels, H x W the token map of a stage, N = H * W.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from timm.layers import DropPath, LayerNorm2d, register_notrace_module
from torch import Tensor, nn

from soft_vit.layers import ConvNormAct, map_to_tokens, tokens_to_map
from soft_vit.layers.attention.mila import MilaAttention
from soft_vit.layers.embed import channels_last
from soft_vit.layers.mlp import Mlp
from soft_vit.layers.plain import Linear, ShortcutConv, conv_norm_act, device_and_dtype, may_read_weight
from soft_vit.models.base import Stage, StagedModel, check_stages, pad_to_multiple, register_family
from soft_vit.ops.layout import Layout
from soft_vit.ops.rotary import rotate_by_position
from soft_vit.weights.adapter import Adapter

# `register_family` adds the entrypoints.
__all__ = ["MILA"]


class Stem(nn.Module):
    """Map images `[B, in_chans, H, W]` to `[B, dim, H / 4, W / 4]` by convolutions, two of them with a shortcut."""

    def __init__(self, in_chans: int, dim: int, **dd: Any) -> None:
        super().__init__()
        half = dim // 2
        unit: dict[str, Any] = dict(bias=False, **dd)
        self.conv1 = ConvNormAct(in_chans, half, stride=2, **unit)
        self.conv2 = nn.Sequential(ConvNormAct(half, half, **unit), ConvNormAct(half, half, act=False, **unit))
        widen = ConvNormAct(half, 4 * dim, stride=2, **unit)
        self.conv3 = nn.Sequential(widen, ConvNormAct(4 * dim, dim, kernel_size=1, act=False, **unit))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(channels_last(pad_to_multiple(x, 4)))
        return self.conv3(self.conv2(x) + x)


class ConvDownsample(nn.Module):
    """Map `[B, dim, H, W]` to `[B, out_dim, ceil(H / 2), ceil(W / 2)]` by an inverted bottleneck."""

    def __init__(self, dim: int, out_dim: int, **dd: Any) -> None:
        super().__init__()
        hidden = 4 * out_dim
        self.conv = nn.Sequential(
            ConvNormAct(dim, hidden, kernel_size=1, norm=False, **dd),
            ConvNormAct(hidden, hidden, stride=2, groups=hidden, norm=False, **dd),
            ConvNormAct(hidden, out_dim, kernel_size=1, act=False, **dd),
        )

    def forward(self, x: Tensor) -> Tensor:
        # Pad first, as the released dense models do: the first convolution turns zeros into its bias.
        units: Any = self.conv
        if not torch.compiler.is_compiling() or not may_read_weight(units[1].conv):
            return self.conv(pad_to_multiple(x, 2))
        # In a graph for any size, pad every side by one: the strided convolution does not reach the added strip where
        # a side is even. The symbolic sizes are then as simple as those of a convolution alone.
        widen, reduce, project = units
        x = F.pad(widen(F.pad(x, (0, 1, 0, 1))), (1, 0, 1, 0))
        x = F.conv2d(x, reduce.conv.weight, reduce.conv.bias, stride=2, groups=reduce.conv.groups)
        return project(reduce.act(x))


@register_notrace_module
class MILABlock(nn.Module):
    """Gated attention and an MLP, each after a depthwise convolution, on maps `[B, C, H, W]`."""

    def __init__(
        self, dim: int, num_heads: int, mlp_ratio: float, proj_drop: float, drop_path: float, **options: Any
    ) -> None:
        super().__init__()
        dd = device_and_dtype(options)
        self.cpe1 = ShortcutConv(dim, **dd)
        self.norm1 = nn.LayerNorm(dim, **dd)
        self.add_attention(dim, num_heads, proj_drop=proj_drop, **options)
        self.drop_path1 = DropPath(drop_path)
        self.cpe2 = ShortcutConv(dim, **dd)
        self.norm2 = nn.LayerNorm(dim, **dd)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop, **dd)
        self.drop_path2 = DropPath(drop_path)

    def add_attention(self, dim: int, num_heads: int, proj_drop: float, **dd: Any) -> None:
        """Add the layers of `mix`."""
        self.in_proj, self.act_proj = (Linear(dim, dim, **dd) for _ in range(2))
        self.dwc = nn.Conv2d(dim, dim, 3, padding=1, groups=dim, **dd)
        self.act = nn.SiLU()
        self.attn = MilaAttention(dim, num_heads, **dd)
        self.out_proj = Linear(dim, dim, **dd)

    def mix(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        """Return the gated attention of tokens `[B, N, C]`."""
        gate = F.silu(self.act_proj(x), inplace=True)
        x = tokens_to_map(self.in_proj(x), feat_size)
        x = map_to_tokens(conv_norm_act(x, self.dwc, act=self.act))
        return self.out_proj(self.attn(x, feat_size) * gate)

    def forward(self, x: Tensor) -> Tensor:
        feat_size = x.shape[2], x.shape[3]
        x = map_to_tokens(self.cpe1(x))
        x = tokens_to_map(x + self.drop_path1(self.mix(self.norm1(x), feat_size)), feat_size)
        x = map_to_tokens(self.cpe2(x))
        return tokens_to_map(x + self.drop_path2(self.mlp(self.norm2(x))), feat_size)


def rotations(model: "MILA", name: str) -> dict[str, Tensor]:
    """Return the tables `[H, W, C / 2, 2]` of cosines and sines at 224 that released files hold, by name, in blocks."""
    buffers = {}
    for i, info in enumerate(model.feature_info):
        side, pairs = 224 // info["reduction"], info["num_chs"] // 2
        # Rotating the pair (1, 0) gives the cosine and the sine of its angle.
        (rotated,) = rotate_by_position(Layout((side, side)), torch.tensor([1.0, 0.0]).repeat(1, side**2, pairs))
        for j, _ in enumerate(cast(Any, model.stages[i]).blocks):
            buffers[f"layers.{i}.blocks.{j}.{name}"] = rotated.reshape(side, side, pairs, 2)
    return buffers


class MILA(StagedModel):
    """MILA for images `[B, in_chans, H, W]` of at least 32 x 32, padded with zeros on the right and below.

    embed_dims, depths, num_heads: of each stage. mlp_ratio: ratio of hidden channels to channels in the MLPs.
    kwargs: arguments of `StagedModel`, such as img_size, num_classes and global_pool.
    """

    adapter = Adapter({"**.rope.rotations": None, "**": "**"}, computed=partial(rotations, name="attn.rope.rotations"))

    stem_class: ClassVar[Any] = Stem
    downsample_class: ClassVar[Any] = ConvDownsample
    block_class: ClassVar[Any] = MILABlock
    norm_class: ClassVar[Any] = LayerNorm2d

    def __init__(
        self,
        embed_dims: Sequence[int] = (64, 128, 256, 512),
        depths: Sequence[int] = (2, 4, 8, 4),
        num_heads: Sequence[int] = (2, 4, 8, 16),
        mlp_ratio: float = 4.0,
        proj_drop_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        dd = device_and_dtype(kwargs)
        check_stages(depths, embed_dims=embed_dims, num_heads=num_heads)
        super().__init__(embed_dims, **kwargs)
        self.patch_embed = self.stem_class(self.in_chans, embed_dims[0], **dd)
        self.layers = nn.ModuleList()
        for i, rates in enumerate(self.drop_path_rates(depths)):
            last, common = i + 1 == len(depths), dict(mlp_ratio=mlp_ratio, proj_drop=proj_drop_rate, **dd)
            blocks = [self.make_block(last, embed_dims[i], num_heads[i], drop_path=rate, **common) for rate in rates]
            self.layers.append(Stage(blocks, None if last else self.downsample_class(*embed_dims[i : i + 2], **dd)))
        self.norm = self.norm_class(embed_dims[-1], eps=1e-5, **dd)
        self.init_weights(needs_reset=False)

    def make_block(self, last: bool, dim: int, num_heads: int, **options: Any) -> nn.Module:
        """Return a block of the last stage or of another one."""
        return self.block_class(dim, num_heads, **options)


MILA_MODELS: dict[str, dict[str, Any]] = {
    "mlla_tiny": dict(embed_dims=(64, 128, 256, 512), depths=(2, 4, 8, 4), num_heads=(2, 4, 8, 16)),
    "mlla_small": dict(embed_dims=(64, 128, 256, 512), depths=(3, 6, 21, 6), num_heads=(2, 4, 8, 16)),
    "mlla_base": dict(embed_dims=(96, 192, 384, 768), depths=(3, 6, 21, 6), num_heads=(3, 6, 12, 24)),
}

register_family(MILA, MILA_MODELS, first_conv="patch_embed.conv1.conv", paper_ids="arXiv:2405.16605")
