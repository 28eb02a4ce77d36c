"""Attentions in the blocks of timm's vision transformers."""

import ast
import warnings
from functools import cache, partial
from typing import Any, Literal

import timm.models.vision_transformer as timm_vit
import torch
from timm.layers import apply_rot_embed_cat
from torch import Tensor, nn

from soft_vit.layers.attention import ATTENTIONS, attention_class, attention_options
from soft_vit.layers.attention.base import Attention
from soft_vit.layers.plain import Linear, device_and_dtype
from soft_vit.layers.token_grid import ImageGrids, TokenGrid, mix_each_grid
from soft_vit.ops.layout import grid_of_tokens

# Arguments that timm's blocks give every attention; types without one of them ignore it.
BLOCK_ARGUMENTS = {"qkv_bias", "attn_drop", "proj_drop"}


def padding_mask(attn_mask: Tensor | None, is_causal: bool, x: Tensor) -> Tensor | None:
    """Return the mask of a timm block for tokens `[B, N, C]` as a key_padding_mask; ValueError if it masks pairs."""
    if is_causal:
        raise ValueError("is_causal must be False, as attentions here take no mask of pairs of tokens.")
    if attn_mask is None:
        return None
    B, N = x.shape[:2]
    # A mask of two dimensions is one of pairs, also where it has the shape (B, N).
    if attn_mask.dtype == torch.bool and attn_mask.shape == (B, 1, 1, N):
        return attn_mask[:, 0, 0]
    found = f"{attn_mask.dtype} of shape {tuple(attn_mask.shape)}"
    raise ValueError(f"attn_mask must be torch.bool of shape {(B, 1, 1, N)}, not a mask of pairs, got {found}.")


def valid_tokens(mask: Tensor) -> Tensor:
    """Return, as bool `[B, N]`, which tokens a mask of pairs `[B, 1, N, N]` or of keys `[B, 1, 1, N]` leaves.

    mask: bool, True for valid pairs, or additive: 0 for these and the smallest number of its dtype for others. All
    queries see the same keys, or all that count themselves and others none; ValueError for another mask.
    """
    counts = mask if mask.dtype == torch.bool else mask == 0
    tokens = counts.any(2)[:, 0]
    if not torch.compiler.is_compiling():
        keys, queries = tokens[:, None, None], tokens[:, None, :, None]
        of_pairs = mask.shape[2] == mask.shape[3] and bool((counts == keys & queries).all())
        additive = mask.dtype == torch.bool or (counts | (mask <= torch.finfo(mask.dtype).min)).all()
        if not additive or not (of_pairs or (counts == keys).all()):
            raise ValueError("attn_mask must leave out padding, for all queries alike, got another mask of pairs.")
    return tokens


def rotate_tokens(x: Tensor, rope: Tensor, half: bool) -> Tensor:
    """Rotate queries or keys `[B, H, P + N, D]`, except P prefix tokens, by timm's sines and cosines rope."""
    P = x.shape[2] - rope.shape[-2]
    return torch.cat([x[:, :, :P], apply_rot_embed_cat(x[:, :, P:], rope, half=half).to(x)], dim=2)


def missing_grid(name: str) -> ValueError:
    """Return the error for an attention that needs a grid without one."""
    instead = "soft_vit.swap_attention follows the grid of each image instead."
    return ValueError(f"feat_size must be the grid (H, W) of the model's tokens for {name!r}, got None. {instead}")


class NoProjection(nn.Identity):
    """The output layer of attentions without one, for models that rescale its weight."""

    weight = torch.empty(0)


class ViTAttention(Attention):
    """An attention with the constructor and the call of `timm.layers.Attention`, on tokens `[B, P + N, C]`.

    timm's blocks do not pass a grid. In a model that follows its images (`GridViT`) it is theirs, otherwise feat_size.

    feat_size: the grid (H, W), which attention types that need one require; weights that belong to a grid have this
        size. "square" stands for the largest square of each image's tokens.
    num_prefix_tokens: their number; by default the tokens that are not on the grid, at most 5.
    sr_ratio: side of the window that a reduced token summarises.
    options: of the attention type.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        norm_layer: Any = None,
        feat_size: tuple[int, int] | Literal["square"] | None = None,
        num_prefix_tokens: int | None = None,
        sr_ratio: int = 2,
        **options: Any,
    ) -> None:
        dd = device_and_dtype(options)
        kind: Any = next(cls for cls in type(self).__mro__ if not issubclass(cls, ViTAttention))
        accepted = attention_options(kind)
        given = {name: x for name, x in options.items() if name in accepted or name not in BLOCK_ARGUMENTS}
        if "qkv_bias" in accepted:
            given.setdefault("qkv_bias", False)
        grid = (14, 14) if feat_size is None or feat_size == "square" else feat_size
        super().__init__(dim, num_heads, feat_size=grid, sr_ratio=sr_ratio, **given)
        if feat_size is None and self.traits.needs_grid:
            raise missing_grid(kind.__name__)
        # The heads of the block; the attention type may have another number.
        self.block_heads = num_heads
        self.grid, self.num_prefix_tokens = feat_size, num_prefix_tokens
        # Whether a rotary embedding pairs channels with those half a head away, instead of neighbours.
        self.rotate_half = False
        if scale_norm:
            raise ValueError(f"scale_attn_norm must be False for {kind.__name__}, which cannot normalise its result.")
        if qk_norm:
            if not self.traits.qk_norm:
                raise ValueError(f"qk_norm must be False for {kind.__name__}, which does not compute queries and keys.")
            self.q_norm = norm_layer(self.head_dim, **dd)
            if not self.traits.key_is_query:
                self.k_norm = norm_layer(self.head_dim, **dd)
        proj = getattr(self, "proj", None)
        if proj is None:
            self.add_module("proj", NoProjection())
        elif not proj_bias:
            self.proj = Linear(proj.in_features, proj.out_features, bias=False, **dd)

    def forward(  # type: ignore[override]  # as timm's blocks call it
        self,
        x: Tensor,
        attn_mask: Tensor | TokenGrid | ImageGrids | None = None,
        is_causal: bool = False,
        rope: Tensor | None = None,
        shared_rel_pos_bias: Tensor | TokenGrid | None = None,
    ) -> Tensor:
        """Mix tokens x `[B, P + N, C]`.

        attn_mask: bool `[B, 1, 1, P + N]`, True for valid tokens.
        rope: sines and cosines of timm's rotary embedding, for attention types with a query and a key of each token.

        ValueError for is_causal, a bias of scores, and masks of pairs. Models that follow the grid of their images pass
        it, with the mask, as attn_mask or shared_rel_pos_bias.
        """
        if isinstance(attn_mask, ImageGrids):
            return self.mix_images(x, attn_mask, rope)
        if isinstance(shared_rel_pos_bias, TokenGrid):
            attn_mask, shared_rel_pos_bias = shared_rel_pos_bias, None
        if shared_rel_pos_bias is not None:
            raise ValueError(f"shared_rel_pos_bias must be None for {type(self).__name__}.")
        is_known = isinstance(attn_mask, TokenGrid)
        given: Any = attn_mask if is_known else (self.grid, self.num_prefix_tokens, attn_mask)
        grid, P, mask = given
        if mask is not None and mask.is_floating_point() and mask.ndim == 4:
            if self.traits.needs_grid and not is_known:
                raise ValueError(f"swap_attention must be used for {type(self).__name__} in batches of many shapes.")
            mask = valid_tokens(mask)[:, None, None]
        mask = padding_mask(mask, is_causal, x)
        if self.traits.needs_grid and not is_known:
            grid, P = grid_of_tokens(x.shape[1], grid, P)
        return self.mix_images(x, grid, rope, mask, P)

    def mix_images(
        self,
        x: Tensor,
        grid: Any,
        rope: Tensor | None = None,
        mask: Tensor | None = None,
        num_prefix_tokens: int | None = None,
    ) -> Tensor:
        """Mix tokens x `[B, P + N, C]` of images.

        grid: their size (Y, X) in tokens; `ImageGrids` of images of many shapes, which are mixed without their padding;
            None for an attention that needs none. mask: `[B, P + N]`, True for valid tokens.
        """
        if isinstance(grid, ImageGrids):
            return mix_each_grid(self.mix_images, x, grid, rope)
        P = num_prefix_tokens
        if not self.traits.needs_grid:
            grid, P = (x.shape[1], 1), 0
        layout = self.layout(x, grid, x.shape[1] - grid[0] * grid[1] if P is None else P, mask)
        rotate = None if rope is None else partial(rotate_tokens, rope=rope, half=self.rotate_half)
        return self.mix_with_padding(x, layout, rotate)

    def set_window_size(self, window_size: tuple[int, int]) -> None:
        """Do as `resize`; BEiT's `set_input_size` calls its attentions by this name."""
        self.resize(window_size)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        self.resample_state(prefix, state_dict)
        super()._load_from_state_dict(state_dict, prefix, *args)


@cache
def _vit_class(cls: Any) -> type[ViTAttention]:
    return type(f"ViT{cls.__name__}", (ViTAttention, cls), {"__module__": __name__, "__doc__": cls.__doc__})


def vit_attention(kind: str) -> type[ViTAttention]:
    """Return the class of an attention type for blocks of ViTs; ValueError for an unknown type."""
    cls: Any = attention_class(kind)
    return _vit_class(cls)


def __getattr__(name: str) -> type[ViTAttention]:
    # Pickled models name these classes.
    for kind, cls in ATTENTIONS.items():
        if name == f"ViT{cls.__name__}":
            return vit_attention(kind)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def check_options(kind: str, options: dict[str, Any]) -> None:
    """ValueError for an option that the attention type does not have, or gets from its block."""
    accepted = {*attention_options(attention_class(kind)), "sr_ratio"} - BLOCK_ARGUMENTS
    if unknown := sorted(options.keys() - accepted):
        raise ValueError(f"Options of {kind!r} must be among {', '.join(sorted(accepted))}, got {unknown[0]!r}.")


class AttnLayer(str):
    """The name, as timm saves it with a model, of an attention type with options; calling it makes a layer."""

    def __call__(self, *args: Any, **kwargs: Any) -> ViTAttention:
        return _layer(self)(*args, **kwargs)


@cache
def _layer(name: str) -> Any:
    """Return a class for timm, whose instances are those of an attention type with the options in a name."""
    call: Any = ast.parse(name, mode="eval").body
    options = {option.arg: ast.literal_eval(option.value) for option in call.keywords}
    (kind,) = map(ast.literal_eval, call.args)
    if "feat_size" not in options and attention_class(kind).traits.needs_grid:
        warnings.warn(f"{name} must have a feat_size, which is taken to be the largest square.", stacklevel=2)
        options["feat_size"] = "square"
    return type(name, (), {"__new__": lambda cls, *args, **kwargs: vit_attention(kind)(*args, **{**options, **kwargs})})


class _AttnLayers(dict):
    """timm's table of attention layers, and those of `attn_layer` by the names that saved models and configs note."""

    def get(self, name: Any, default: Any = None) -> Any:
        return _layer(name) if str(name).startswith("soft_vit.attn_layer(") else super().get(name, default)


timm_vit.ATTN_LAYERS = _AttnLayers(timm_vit.ATTN_LAYERS)


def attn_layer(
    kind: str, feat_size: tuple[int, int] | None = None, num_prefix_tokens: int | None = None, **options: Any
) -> AttnLayer:
    """Return an attention for the argument `attn_layer` of timm's VisionTransformer.

    >>> attention = attn_layer("performer", num_features=64)
    >>> model = timm.create_model("vit_tiny_patch16_224", attn_layer=attention)

    timm's blocks do not pass a grid to their attention, so types that need one require feat_size (H, W), in tokens.
    num_prefix_tokens is by default the number of tokens that are not on the grid, at most five. Models by name
    (`performer_vit_tiny_patch16`) and those of `swap_attention` follow the grid of each image instead.

    options: of the attention type, and sr_ratio (default 2), the side of the window that a reduced token summarises.
    ValueError for an unknown type or option, and a feat_size that is missing or not two positive integers.
    """
    check_options(kind, options)
    sides = feat_size if isinstance(feat_size, tuple | list) else ()
    if feat_size is not None and (len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides)):
        raise ValueError(f"feat_size must be two positive integers (H, W), got {feat_size!r}.")
    if feat_size is None and (attention_class(kind).traits.needs_grid or options.get("qk_conv")):
        raise missing_grid(kind)
    given = {"feat_size": feat_size, "num_prefix_tokens": num_prefix_tokens, **options}
    arguments = (f", {name}={value!r}" for name, value in given.items() if value is not None)
    return AttnLayer(f"soft_vit.attn_layer({kind!r}{''.join(arguments)})")
