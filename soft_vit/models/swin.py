"""Swin (Liu et al. 2021, arXiv 2103.14030) with another attention in its first blocks.

Families subclass `Swin` with their attention.

Letters: B batch, C channels, H x W the map of a stage, N = H * W, G windows of an image, S the side of a window.
"""

import math
from collections.abc import MutableMapping, Sequence
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from timm.layers import LayerNorm2d, register_notrace_function, register_notrace_module
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table_simple
from timm.models.swin_transformer import (
    PatchMerging,
    WindowAttention,
    get_relative_position_index,
    window_partition,
    window_reverse,
)
from torch import Tensor, nn

from soft_vit.layers import PreNormBlock
from soft_vit.layers.embed import replace_parameter
from soft_vit.layers.plain import device_and_dtype
from soft_vit.models.base import StagedModel, check_stages, pad_to_multiple
from soft_vit.models.pvt import PatchEmbed, TokenStage
from soft_vit.ops.layout import Size
from soft_vit.weights.adapter import Adapter

# Added to the scores of pairs of tokens that are not neighbours in the image, in released files. The models add -inf:
# the exponential of -100 is a denormal number, with which products take several times as long.
RELEASED_MASK = -100.0


_TINY = dict(embed_dims=(96, 192, 384, 768), num_heads=(3, 6, 12, 24), linear_blocks=(2, 2, 0, 0))
_BASE = dict(_TINY, embed_dims=(128, 256, 512, 1024), num_heads=(4, 8, 16, 32), depths=(2, 2, 18, 2))
SWIN_SIZES: dict[str, dict[str, Any]] = {
    "tiny": dict(_TINY, depths=(2, 2, 6, 2)),
    "small": dict(_TINY, depths=(2, 2, 18, 2)),
    "base": _BASE,
    "base_384": dict(_BASE, window_size=96),
}
"""Arguments of the sizes of Swin."""


def swin_cfg(name: str) -> dict[str, Any]:
    """Return entries of timm's configuration of a model, for images of 384 pixels if its name ends in _384."""
    side, crop_pct = (384, 1.0) if name.endswith("_384") else (224, 0.875)
    sizes = dict(input_size=(3, side, side), pool_size=(side // 32, side // 32))
    return dict(sizes, crop_pct=crop_pct, crop_mode="squash")


def linear_window(feat_size: Size, window: int) -> Size:
    """Return the window of a linear attention: a square if it divides the map evenly, otherwise the whole map."""
    side = min(window, *feat_size)
    return feat_size if feat_size[0] % side or feat_size[1] % side else (side, side)


def window_shift(feat_size: Size, size: Size, shifted: bool) -> int:
    """Return half a window if windows are shifted, and 0 for a map without two windows on each side."""
    return size[0] // 2 if shifted and max(size) < min(feat_size) else 0


def cut(x: Tensor, feat_size: Size, size: Size, shift: int) -> Tensor:
    """Return tokens `[B, N, C]` as windows `[B * G, S * S, C]` of the map, rolled by shift and padded with zeros."""
    if size == tuple(feat_size):
        return x
    x = x.unflatten(1, feat_size)
    if shift:
        x = x.roll((-shift, -shift), (1, 2))
    x = F.pad(x, (0, 0, 0, -feat_size[1] % size[1], 0, -feat_size[0] % size[0]))
    return window_partition(x, size).flatten(1, 2)


def join(x: Tensor, feat_size: Size, size: Size, shift: int) -> Tensor:
    """Invert `cut`."""
    if size == tuple(feat_size):
        return x
    (H, W), padded = feat_size, [side + -side % s for side, s in zip(feat_size, size, strict=True)]
    x = window_reverse(x.unflatten(1, size), size, *padded)[:, :H, :W]
    if shift:
        x = x.roll((shift, shift), (1, 2))
    return x.flatten(1, 2)


def window_mask(x: Tensor, feat_size: Size, size: Size, shift: int) -> Tensor | None:
    """Return the mask that is added to scores in windows, `[G, S * S, S * S]` in the dtype of x; None if it is zero.

    It is -inf for pairs of tokens that are neighbours by the roll or by padding alone, otherwise 0.
    """
    beyond = [-side % s for side, s in zip(feat_size, size, strict=True)]
    if not (shift or any(beyond)):
        return None
    regions = []
    for side, more in zip(feat_size, beyond, strict=True):
        place = torch.arange(side + more, device=x.device)
        # Region 1 was rolled to the end of the map, region 2 is padding.
        regions.append((place >= side - shift).long() + (place >= side).long())
    region = (3 * regions[0][:, None] + regions[1])[None, ..., None]
    region = window_partition(region, size).flatten(1)
    return torch.where(region[:, :, None] == region[:, None], 0.0, -math.inf).to(x.dtype)


@register_notrace_function
def specialize_sizes(x: Tensor) -> Tensor:
    """Return a map `[B, C, H, W]` whose sides torch.compile treats as constants.

    With symbolic sides, sizes of padded and merged windows become expressions that take minutes to simplify.
    """
    for side in x.shape[2:]:
        range(side)
    return x


class SoftmaxWindows(WindowAttention):
    """timm's softmax attention within windows, whose relative position biases can be resampled to other windows."""

    def resample(self, table: Tensor, window_size: Size) -> Tensor:
        """Return biases `[(2 S - 1)^2, heads]` of a square window, resampled bicubically to another."""
        shape = ((2 * window_size[0] - 1) * (2 * window_size[1] - 1), self.num_heads)
        return resize_rel_pos_bias_table_simple(table, window_size, shape)

    def resize(self, feat_size: Size) -> None:
        """Resample the biases to windows of another size."""
        table = self.relative_position_bias_table
        replace_parameter(self, "relative_position_bias_table", self.resample(table, feat_size))
        self.window_size, self.window_area = feat_size, feat_size[0] * feat_size[1]
        self.relative_position_index = get_relative_position_index(*feat_size, device=table.device)

    def resample_state(self, prefix: str, state_dict: MutableMapping[str, Tensor], noted: Size | None = None) -> None:
        """Resample biases in state_dict, in place, to the windows of this module."""
        name = f"{prefix}relative_position_bias_table"
        table = state_dict.get(name)
        if table is not None and math.isqrt(len(table)) ** 2 == len(table):
            state_dict[name] = self.resample(table, self.window_size)


@register_notrace_module
class WindowBlock(PreNormBlock):
    """A pre-norm block whose attention works within windows of the map.

    window: largest side of a window. shifted: shift windows by half a side. kwargs: arguments of `PreNormBlock`.
    """

    def __init__(self, dim: int, attn: Any, *, window: int, shifted: bool, **kwargs: Any) -> None:
        super().__init__(dim, attn, norm_eps=1e-5, **kwargs)
        self.window, self.shifted = window, shifted


class LinearBlock(WindowBlock):
    """Linear attention within windows that divide the map evenly, or on the whole map.

    Shifted windows wrap around the map, as in the released models.
    """

    def mix(self, x: Tensor, feat_size: Size, num_prefix_tokens: int = 0) -> Tensor:
        size = linear_window(feat_size, self.window)
        shift = window_shift(feat_size, size, self.shifted)
        return join(self.attn(cut(x, feat_size, size, shift), size), feat_size, size, shift)

    def resize(self, grid_size: Size) -> None:
        """Resample the weights that belong to one map to another."""
        self.attn.resize(linear_window(grid_size, self.window))


class SoftmaxBlock(WindowBlock):
    """Softmax attention within windows; padding is masked."""

    attn: SoftmaxWindows  # type: ignore[assignment]

    def mix(self, x: Tensor, feat_size: Size, num_prefix_tokens: int = 0) -> Tensor:
        size = self.attn.window_size
        shift = window_shift(feat_size, size, self.shifted)
        mask = window_mask(x, feat_size, size, shift)
        return join(self.attn(cut(x, feat_size, size, shift), mask), feat_size, size, shift)

    def resize(self, grid_size: Size) -> None:
        """Resample the weights that belong to one map to another."""
        self.attn.resize((min(self.window, *grid_size),) * 2)


class PaddedPatchEmbed(PatchEmbed):
    """Map images, padded with zeros to multiples of 4, to a map of patches."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(pad_to_multiple(specialize_sizes(x), 4))


class MergePatches(PatchMerging):
    """timm's merging of 2 x 2 tokens on maps: `[B, C, H, W]` to `[B, 2 C, ceil(H / 2), ceil(W / 2)]`."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def window_buffers(model: "Swin") -> dict[str, Tensor]:
    """Return the positions and masks of softmax windows that released files hold, for the image size of model."""
    buffers = {}
    for i, stage in enumerate(model.layers):
        for j, block in enumerate(stage.blocks):
            if isinstance(block, SoftmaxBlock):
                name, size, grid_size = f"layers.{i}.blocks.{j}.", block.attn.window_size, stage.grid_size
                buffers[f"{name}attn.relative_position_index"] = get_relative_position_index(*size)
                if shift := window_shift(grid_size, size, block.shifted):
                    mask = cast(Tensor, window_mask(torch.zeros(()), grid_size, size, shift))
                    buffers[f"{name}attn_mask"] = mask.clamp(min=RELEASED_MASK)
    return buffers


class Swin(StagedModel):
    """Four stages of attention within windows, for images `[B, in_chans, H, W]` of at least 32 x 32.

    A subclass sets the attention of the first blocks. Images are padded with zeros to multiples of 4, maps to even
    sides. Softmax windows keep the size for img_size on images of any size.

    linear_blocks: number of first blocks of each stage with the attention of the subclass; all others have softmax.
    window_size: largest side of windows without softmax; those with softmax have an eighth of it, at least 7.
    embed_dims, depths, num_heads: of each stage. kwargs: arguments of `StagedModel`.
    """

    attention: ClassVar[Any]
    """The class of the attention, such as `InLineAttention`."""

    layers: Sequence[TokenStage]  # type: ignore[assignment]  # a ModuleList knows no type of its modules
    adapter = Adapter({"**.relative_position_index": None, "**.attn_mask": None, "**": "**"}, computed=window_buffers)
    no_decay: ClassVar[tuple[str, ...]] = ("relative_position_bias_table",)

    def __init__(
        self,
        embed_dims: Sequence[int] = (96, 192, 384, 768),
        num_heads: Sequence[int] = (3, 6, 12, 24),
        depths: Sequence[int] = (2, 2, 6, 2),
        linear_blocks: Sequence[int] = (2, 2, 0, 0),
        window_size: int = 56,
        proj_drop_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        dd = device_and_dtype(kwargs)
        check_stages(depths, embed_dims=embed_dims, num_heads=num_heads)
        super().__init__(embed_dims, **kwargs)
        self.patch_embed = PaddedPatchEmbed(self.in_chans, embed_dims[0], 4, overlap=False, pre_norm=False, **dd)
        self.window_size = window_size
        grids = self.grids(self.img_size)
        common: dict[str, Any] = dict(proj_drop=proj_drop_rate, **dd)
        softmax_window = max(7, window_size // 8)
        stages = []
        for i, rates in enumerate(self.drop_path_rates(depths)):
            dim, heads = embed_dims[i], num_heads[i]
            blocks: list[WindowBlock] = []
            for j, rate in enumerate(rates):
                options: dict[str, Any] = dict(shifted=j % 2 == 1, drop_path=rate, **common)
                if j < linear_blocks[i]:
                    attn = self.attention(dim, heads, feat_size=linear_window(grids[i], window_size), **common)
                    blocks.append(LinearBlock(dim, attn, window=window_size, **options))
                else:
                    attn = SoftmaxWindows(dim, heads, window_size=min(softmax_window, *grids[i]), **common)
                    blocks.append(SoftmaxBlock(dim, attn, window=softmax_window, **options))
            downsample = MergePatches(dim, embed_dims[i + 1], **dd) if i + 1 < len(depths) else None
            stages.append(TokenStage(blocks, downsample, grids[i], **dd))
        self.layers = nn.ModuleList(stages)  # type: ignore[assignment]
        self.norm = LayerNorm2d(embed_dims[-1], eps=1e-5, **dd)
        self.init_weights(needs_reset=False)

    def attention_grid(self, grid_size: Size) -> Size:
        return linear_window(grid_size, self.window_size)
