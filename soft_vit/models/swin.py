"""The body of Swin (Liu et al. 2021, arXiv 2103.14030) for families that replace softmax in its first stages.

Letters: B batch, C channels, H x W the map of a stage, N = H * W, G windows of an image, S the side of a window.
"""

import math
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from timm.layers import LayerNorm2d, register_notrace_function, register_notrace_module
from timm.models.swin_transformer import (
    PatchMerging,
    WindowAttention,
    get_relative_position_index,
    window_partition,
    window_reverse,
)
from torch import Tensor, nn

from soft_vit.layers import PreNormBlock
from soft_vit.models.base import StagedModel, check_stages, drop_path_rates, imagenet_cfg, pad_to_multiple
from soft_vit.models.pvt import PatchEmbed, TokenStage
from soft_vit.ops.numerics import at_least_float32

Size = tuple[int, int]

# Added to scores of pairs that lie apart in the image, as in the released models.
MASK_VALUE = -100.0


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
    """Timm's configuration of a model of the families, whose images are of 384 pixels where its name says so."""
    side = 384 if name.endswith("_384") else 224
    crop_pct = 1.0 if side == 384 else 0.875
    return imagenet_cfg(
        input_size=(3, side, side), pool_size=(side // 32, side // 32), crop_pct=crop_pct, crop_mode="squash"
    )


def linear_window(feat_size: Size, window: int) -> Size:
    """The window of an attention whose cost is linear: square where such windows cut the map evenly, else the map."""
    side = min(window, *feat_size)
    return feat_size if feat_size[0] % side or feat_size[1] % side else (side, side)


def window_shift(feat_size: Size, size: Size, shifted: bool) -> int:
    """Half a window where windows are shifted, 0 for a map without two of them on each side."""
    return size[0] // 2 if shifted and max(size) < min(feat_size) else 0


def cut(x: Tensor, feat_size: Size, size: Size, shift: int) -> Tensor:
    """Tokens `[B, N, C]` as windows `[B * G, S * S, C]` of the map, rolled by shift, with zeros right and below."""
    if size == tuple(feat_size):
        return x
    x = x.unflatten(1, feat_size)
    if shift:
        x = x.roll((-shift, -shift), (1, 2))
    x = F.pad(x, (0, 0, 0, -feat_size[1] % size[1], 0, -feat_size[0] % size[0]))
    return window_partition(x, size).flatten(1, 2)


def join(x: Tensor, feat_size: Size, size: Size, shift: int) -> Tensor:
    """The inverse of `cut`."""
    if size == tuple(feat_size):
        return x
    (H, W), padded = feat_size, [side + -side % s for side, s in zip(feat_size, size, strict=True)]
    x = window_reverse(x.unflatten(1, size), size, *padded)[:, :H, :W]
    if shift:
        x = x.roll((shift, shift), (1, 2))
    return x.flatten(1, 2)


def window_mask(x: Tensor, feat_size: Size, size: Size, shift: int) -> Tensor | None:
    """What is added to scores in windows: 0, or -100 for pairs that only the roll or the padding made neighbours.

    `[G, S * S, S * S]` in the dtype of x; None where it is zero.
    """
    beyond = [-side % s for side, s in zip(feat_size, size, strict=True)]
    if not (shift or any(beyond)):
        return None
    regions = []
    for side, more in zip(feat_size, beyond, strict=True):
        place = torch.arange(side + more, device=x.device)
        # What was rolled to the end is the first, what lies behind it the second other region.
        regions.append((place >= side - shift).long() + (place >= side).long())
    region = (3 * regions[0][:, None] + regions[1])[None, ..., None]
    region = window_partition(region, size).flatten(1)
    return torch.where(region[:, :, None] == region[:, None], 0.0, MASK_VALUE).to(x.dtype)


@register_notrace_function
def specialize_sizes(x: Tensor) -> Tensor:
    """Return a map `[B, C, H, W]`; torch.compile then takes its sides for constants.

    With symbols for them, sizes of padded and merged windows become expressions that it simplifies for minutes.
    """
    for side in x.shape[2:]:
        range(side)
    return x


def resample_offsets(table: Tensor, window: int) -> Tensor:
    """Biases of the offsets within a square window `[(2 S - 1)^2, H]` for those within another, bicubically."""
    side, own = math.isqrt(table.shape[0]), 2 * window - 1
    if side == own or side * side != table.shape[0]:
        return table
    maps = at_least_float32(table).mT.unflatten(1, (side, side))[None]
    resampled = F.interpolate(maps, size=(own, own), mode="bicubic", align_corners=False)
    return resampled[0].flatten(1).mT.to(table.dtype)


class SoftmaxWindows(WindowAttention):
    """timm's softmax attention within windows, with a bias for each offset, and weights that fit other windows."""

    def resize(self, feat_size: Size) -> None:
        """Resample the biases to windows of another size, for good."""
        table = self.relative_position_bias_table
        resampled = resample_offsets(table.detach(), feat_size[0]).clone()
        self.relative_position_bias_table = nn.Parameter(resampled, requires_grad=table.requires_grad)
        self.window_size, self.window_area = feat_size, feat_size[0] * feat_size[1]
        self.relative_position_index = get_relative_position_index(*feat_size, device=table.device)

    def resample_state(self, prefix: str, state_dict: MutableMapping[str, Tensor]) -> None:
        """Resample, in state_dict, the biases of other windows to this module's own."""
        name = f"{prefix}relative_position_bias_table"
        if name in state_dict and state_dict[name].shape[1:] == self.relative_position_bias_table.shape[1:]:
            state_dict[name] = resample_offsets(state_dict[name], self.window_size[0])


@register_notrace_module
class WindowBlock(PreNormBlock):
    """A pre-norm block whose attention works within windows of the map.

    window: their side, at most; shifted: whether they are shifted by half of it. kwargs: of `PreNormBlock`.
    """

    def __init__(self, dim: int, attn: Any, *, window: int, shifted: bool, **kwargs: Any) -> None:
        super().__init__(dim, attn, norm_eps=1e-5, **kwargs)
        self.window = window
        self.shifted = shifted

    def mix(self, x: Tensor, feat_size: Size) -> Tensor:
        """The attention of tokens `[B, N, C]`."""
        raise NotImplementedError

    def forward(self, x: Tensor, feat_size: Size, num_prefix_tokens: int = 0) -> Tensor:
        x = x + self.drop_path1(self.mix(self.norm1(x), feat_size))
        return x + self.drop_path2(self.feed_forward(self.norm2(x)))


class LinearBlock(WindowBlock):
    """The window of an attention without softmax is the whole map, unless smaller ones cut it evenly.

    Shifted windows wrap around the map, as in the released models.
    """

    def mix(self, x: Tensor, feat_size: Size) -> Tensor:
        size = linear_window(feat_size, self.window)
        shift = window_shift(feat_size, size, self.shifted)
        return join(self.attn(cut(x, feat_size, size, shift), size), feat_size, size, shift)

    def resize(self, grid_size: Size) -> None:
        """Resample the weights that belong to one map to another, for good."""
        self.attn.resize(linear_window(grid_size, self.window))


class SoftmaxBlock(WindowBlock):
    """Softmax attention within windows; zeros that fill up the last ones are left out."""

    attn: SoftmaxWindows  # type: ignore[assignment]

    def mix(self, x: Tensor, feat_size: Size) -> Tensor:
        size = self.attn.window_size
        shift = window_shift(feat_size, size, self.shifted)
        mask = window_mask(x, feat_size, size, shift)
        return join(self.attn(cut(x, feat_size, size, shift), mask), feat_size, size, shift)

    def resize(self, grid_size: Size) -> None:
        """Resample the weights that belong to one map to another, for good."""
        self.attn.resize((min(self.window, *grid_size),) * 2)


class PaddedPatchEmbed(PatchEmbed):
    """Images, filled up with zeros to multiples of 4, to a map of patches."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(pad_to_multiple(specialize_sizes(x), 4))


class MergePatches(PatchMerging):
    """timm's merging of 2 x 2 places, from `[B, C, H, W]` to `[B, 2 C, H / 2, W / 2]`, odd sides rounded up."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Swin(StagedModel):
    """Four stages of attention within windows; images `[B, in_chans, H, W]` from 32 x 32 up.

    A subclass says which attention takes the place of softmax. Images are filled up with zeros to multiples of 4, odd
    maps to even ones. A model built for img_size has the windows of that size; other images keep them.

    linear_blocks: for every stage, how many of its first blocks have that attention; the others have softmax.
    window_size: side of the windows without softmax, at most; those with softmax have an eighth, at least 7.
    embed_dims, depths, num_heads: of each stage. kwargs: of `StagedModel`.
    """

    attention: ClassVar[Any]
    """The class of the attention, such as `InLineAttention`."""

    layers: Sequence[TokenStage]  # type: ignore[assignment]  # a ModuleList knows no type of its modules
    computed: ClassVar[tuple[str, ...]] = ("relative_position_index", "attn_mask")
    no_decay: ClassVar[tuple[str, ...]] = ("relative_position_bias_table",)

    def __init__(
        self,
        embed_dims: Sequence[int] = (96, 192, 384, 768),
        num_heads: Sequence[int] = (3, 6, 12, 24),
        depths: Sequence[int] = (2, 2, 6, 2),
        linear_blocks: Sequence[int] = (2, 2, 0, 0),
        window_size: int = 56,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        device=None,
        dtype=None,
        **kwargs: Any,
    ) -> None:
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        check_stages(depths, embed_dims=embed_dims, num_heads=num_heads)
        super().__init__(embed_dims, **kwargs, **dd)
        self.patch_embed = PaddedPatchEmbed(self.in_chans, embed_dims[0], 4, overlap=False, pre_norm=False, **dd)
        grids, stages = self.grids(self.img_size), []
        common: dict[str, Any] = dict(proj_drop=proj_drop_rate, **dd)
        for i, (dim, rates) in enumerate(zip(embed_dims, drop_path_rates(drop_path_rate, depths), strict=True)):
            grid, heads = grids[i], num_heads[i]
            blocks: list[nn.Module] = []
            for j, rate in enumerate(rates):
                attn: nn.Module
                block_class: type[WindowBlock]
                if j < linear_blocks[i]:
                    block_class, window = LinearBlock, window_size
                    attn = self.attention(dim, heads, feat_size=linear_window(grid, window), **common)
                else:
                    block_class, window = SoftmaxBlock, max(7, window_size // 8)
                    attn = SoftmaxWindows(dim, heads, window_size=min(window, *grid), **common)
                blocks.append(block_class(dim, attn, window=window, shifted=j % 2 == 1, drop_path=rate, **common))
            following = embed_dims[i + 1 : i + 2]
            downsample = MergePatches(dim, following[0], **dd) if following else None
            stages.append(TokenStage(blocks, downsample, grid, **dd))
        self.layers = nn.ModuleList(stages)  # type: ignore[assignment]
        self.norm = LayerNorm2d(embed_dims[-1], eps=1e-5, **dd)
        self.init_weights(needs_reset=False)

    def released_state_dict(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights under the released names, which are the model's own, with the buffers for the model's size."""
        weights = super().released_state_dict(state_dict)
        for i, stage in enumerate(self.layers):
            for j, block in enumerate(stage.blocks):
                if isinstance(block, SoftmaxBlock):
                    name, size = f"layers.{i}.blocks.{j}.", block.attn.window_size
                    grid_size = stage.grid_size
                    weights[f"{name}attn.relative_position_index"] = get_relative_position_index(*size)
                    shift = window_shift(grid_size, size, block.shifted)
                    if shift:
                        mask = window_mask(torch.zeros(()), grid_size, size, shift)
                        weights[f"{name}attn_mask"] = cast(Tensor, mask)
        return weights
