"""PVT (Wang et al. 2021, arXiv 2102.12122) and PVTv2 (arXiv 2106.13797), without spatial reduction.

Families subclass `PVT` with their attention.

Letters: B batch, C channels, H x W the map of a stage, N = H * W.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from timm.layers import LayerNorm2d, register_notrace_module, trunc_normal_
from torch import Tensor, nn

from soft_vit.layers import Attention, PreNormBlock, resample_pos_embed
from soft_vit.layers.embed import channels_last, map_to_tokens, tokens_to_map
from soft_vit.layers.plain import Linear, conv_norm_act, device_and_dtype
from soft_vit.layers.recompute import checkpoint
from soft_vit.models.base import Stage, StagedModel, check_stages, init_conv
from soft_vit.weights.adapter import Adapter


class PatchEmbed(nn.Module):
    """Map `[B, C, H, W]` to `[B, C', H', W']` by a strided convolution and a LayerNorm.

    overlap: use overlapping, padded patches as in PVTv2; H' is H / stride rounded up, otherwise down.
    pre_norm: apply a LayerNorm before the convolution too.
    """

    def __init__(self, in_chans: int, dim: int, stride: int, overlap: bool, pre_norm: bool, **dd: Any) -> None:
        super().__init__()
        kernel, padding = (2 * stride - 1, stride - 1) if overlap else (stride, 0)
        self.pre_norm = LayerNorm2d(in_chans, eps=1e-6, **dd) if pre_norm else nn.Identity()
        self.proj = nn.Conv2d(in_chans, dim, kernel, stride, padding, **dd)
        self.norm = LayerNorm2d(dim, eps=1e-5, **dd)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.proj(self.pre_norm(channels_last(x))))


class TokenStage(Stage):
    """A stage whose blocks take tokens `[B, N, C]`, with an optional position embedding before them.

    grid_size: map of the position embedding, which is resampled bilinearly to other maps. pos_dim: channels of the
        position embedding; None for none.
    """

    num_prefix_tokens: ClassVar[int] = 0

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        downsample: nn.Module | None,
        grid_size: tuple[int, int],
        pos_dim: int | None = None,
        **dd: Any,
    ) -> None:
        super().__init__(blocks, downsample)
        self.grid_size = grid_size
        shape = (1, grid_size[0] * grid_size[1], pos_dim or 0)
        self.pos_embed = nn.Parameter(torch.empty(shape, **dd)) if pos_dim else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.pos_embed is not None:
            trunc_normal_(self.pos_embed, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        H, W = x.shape[2:]
        x = map_to_tokens(x)
        if self.pos_embed is not None:
            x = x + resample_pos_embed(self.pos_embed, self.grid_size, (H, W))
        for block in self.blocks:
            x = checkpoint(block, x, (H, W)) if self.grad_checkpointing else block(x, (H, W))
        return tokens_to_map(x, (H, W))


@register_notrace_module
class ConvMlp(nn.Module):
    """`fc2(gelu(dwconv(fc1(x))))` of PVTv2, on tokens `[B, N, C]`; dwconv is a depthwise convolution."""

    def __init__(self, dim: int, hidden_dim: int, drop: float = 0.0, **dd: Any) -> None:
        super().__init__()
        self.fc1 = Linear(dim, hidden_dim, **dd)
        self.dwconv = nn.Conv2d(hidden_dim, hidden_dim, 3, padding=1, groups=hidden_dim, **dd)
        self.act = nn.GELU()
        self.fc2 = Linear(hidden_dim, dim, **dd)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        x = conv_norm_act(tokens_to_map(self.fc1(x), feat_size), self.dwconv, act=self.act)
        return self.drop(self.fc2(self.drop(map_to_tokens(x))))


class ConvMlpBlock(PreNormBlock):
    """The block of PVTv2, whose MLP has a depthwise 3 x 3 convolution of the hidden map."""

    def __init__(self, dim: int, attn: Attention, *, mlp_ratio: float, proj_drop: float, **kwargs: Any) -> None:
        dd = device_and_dtype(kwargs)
        super().__init__(dim, attn, mlp_ratio=mlp_ratio, proj_drop=proj_drop, **kwargs)
        self.mlp = ConvMlp(dim, int(dim * mlp_ratio), drop=proj_drop, **dd)  # type: ignore[assignment]

    def forward(self, x: Tensor, feat_size: tuple[int, int], num_prefix_tokens: int = 0) -> Tensor:
        x = x + self.drop_path1(self.attn(self.norm1(x), feat_size, num_prefix_tokens))
        return x + self.drop_path2(self.mlp(self.norm2(x), feat_size))


def released_names() -> dict[str, str | None]:
    """Return the names of parameters in released files, whose stages count from 1, and in this package."""
    names: dict[str, str | None] = {"norm.*": None, "head.*": "head.*", "patch_embed1.**": "patch_embed.**"}
    for i in range(4):
        names |= {
            f"pos_embed{i + 1}": f"layers.{i}.pos_embed",
            f"block{i + 1}.*.mlp.dwconv.dwconv.*": f"layers.{i}.blocks.*.mlp.dwconv.*",
            f"block{i + 1}.**": f"layers.{i}.blocks.**",
            f"norm{i + 1}.*": f"layers.{i}.downsample.pre_norm.*",
            f"patch_embed{i + 2}.**": f"layers.{i}.downsample.**",
        }
    return {**names, "norm4.*": "norm.*"}


def unused_norm(model: "PVT") -> dict[str, Tensor]:
    """Return the norm after the last stage that some released files of PVT hold, and do not apply."""
    if model.overlap:
        return {}
    return {"norm.weight": torch.ones(model.num_features), "norm.bias": torch.zeros(model.num_features)}


_PVT = dict(embed_dims=(64, 128, 320, 512), num_heads=(1, 2, 5, 8), mlp_ratios=(8, 8, 4, 4))
PVT_SIZES: dict[str, dict[str, Any]] = {
    "tiny": dict(_PVT, depths=(2, 2, 2, 2)),
    "small": dict(_PVT, depths=(3, 4, 6, 3)),
    "medium": dict(_PVT, depths=(3, 4, 18, 3)),
    "large": dict(_PVT, depths=(3, 8, 27, 3)),
}
"""Arguments of the sizes of PVT."""


class PVT(StagedModel):
    """Four stages of attention between all tokens of a map, for images `[B, in_chans, H, W]` of at least 32 x 32.

    A subclass sets the attention. Position embeddings and weights for the maps of img_size are resampled for images of
    another size.

    overlap: build PVTv2: overlapping patches, MLPs with a convolution, and a norm after every stage. Otherwise PVT:
        patches that do not overlap and position embeddings, without a norm after the last stage.
    embed_dims, depths, num_heads, mlp_ratios: of each stage. kwargs: arguments of `StagedModel`.
    """

    attention: ClassVar[Any]
    """The class of the attention, such as `InLineAttention`."""

    layers: Sequence[TokenStage]  # type: ignore[assignment]  # a ModuleList knows no type of its modules

    adapter = Adapter(released_names(), projections=(("q", "kv"), ("qkv",)))

    def __init__(
        self,
        embed_dims: Sequence[int] = (64, 128, 320, 512),
        num_heads: Sequence[int] = (1, 2, 5, 8),
        depths: Sequence[int] = (2, 2, 2, 2),
        mlp_ratios: Sequence[float] = (8, 8, 4, 4),
        overlap: bool = False,
        proj_drop_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        dd = device_and_dtype(kwargs)
        check_stages(depths, embed_dims=embed_dims, num_heads=num_heads, mlp_ratios=mlp_ratios)
        super().__init__(embed_dims, **kwargs)
        self.overlap = self.rounds_up = overlap
        self.patch_embed = PatchEmbed(self.in_chans, embed_dims[0], 4, overlap, pre_norm=False, **dd)
        block_class = ConvMlpBlock if overlap else PreNormBlock
        grids = self.grids(self.img_size)
        common: dict[str, Any] = dict(proj_drop=proj_drop_rate, **dd)
        stages = []
        for i, rates in enumerate(self.drop_path_rates(depths)):
            dim, blocks = embed_dims[i], []
            for rate in rates:
                attn = self.attention(dim, num_heads[i], feat_size=grids[i], **common)
                blocks.append(block_class(dim, attn, mlp_ratio=mlp_ratios[i], drop_path=rate, **common))
            downsample = None
            if i + 1 < len(depths):
                downsample = PatchEmbed(dim, embed_dims[i + 1], 2, overlap, pre_norm=overlap, **dd)
            stages.append(TokenStage(blocks, downsample, grids[i], pos_dim=None if overlap else dim, **dd))
        self.layers = nn.ModuleList(stages)  # type: ignore[assignment]
        self.norm = LayerNorm2d(embed_dims[-1], eps=1e-6, **dd) if overlap else nn.Identity()
        self.init_weights(needs_reset=False)

    def init_weights(self, needs_reset: bool = True) -> None:
        """Draw random weights as `StagedModel` does; convolutions of PVTv2 are normal, of variance 2 / fan-out."""
        super().init_weights(needs_reset)
        for module in self.modules():
            if self.overlap and isinstance(module, nn.Conv2d):
                init_conv(module)
