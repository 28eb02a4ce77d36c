"""Attentions in the blocks of timm's vision transformers."""

import ast
from functools import partial
from typing import Any

import timm.models.vision_transformer as timm_vit
import torch
from timm.layers import apply_rot_embed_cat
from torch import Tensor, nn

from soft_vit.layers.attention import ATTENTIONS, attention_class, attention_options
from soft_vit.layers.attention.base import Attention
from soft_vit.layers.token_map import ImageMaps, TokenMap, mix_each_map
from soft_vit.ops.layout import square_layout

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


def tokens_that_count(mask: Tensor) -> Tensor:
    """Return, as bool `[B, N]`, which tokens a mask of pairs `[B, 1, N, N]` or of keys `[B, 1, 1, N]` leaves.

    mask: bool, True for pairs that count, or additive: 0 for these and the smallest number of its dtype for others. All
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


class NoProjection(nn.Identity):
    """The output layer of attentions without one, for models that rescale its weight."""

    weight = torch.empty(0)


class ViTAttention(Attention):
    """An attention with the constructor and the call of `timm.layers.Attention`, on tokens `[B, P + N, C]`.

    timm's blocks do not pass a map. In a model that follows its images (`FollowsMap`) it is theirs. Otherwise it is
    feat_size or, by default, the largest square that the tokens fill; the tokens before it are prefix tokens.

    feat_size: the map (H, W); weights that belong to a map have this size, by default 14 x 14.
    num_prefix_tokens: their number; by default the tokens that are not on the map, at most 5.
    sr_ratio: side of the window that a reduced token summarises.
    options: of the attention type.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Any = None,
        feat_size: tuple[int, int] | None = None,
        num_prefix_tokens: int | None = None,
        sr_ratio: int = 2,
        device=None,
        dtype=None,
        **options: Any,
    ) -> None:
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        kind: Any = next(cls for cls in type(self).__mro__ if not issubclass(cls, ViTAttention))
        given = {"qkv_bias": qkv_bias, "attn_drop": attn_drop, "proj_drop": proj_drop, **options}
        accepted = attention_options(kind)
        given = {name: value for name, value in given.items() if name in accepted or name not in BLOCK_ARGUMENTS}
        super().__init__(dim, num_heads, feat_size=feat_size or (14, 14), sr_ratio=sr_ratio, **given, **dd)
        # The heads of the block; the attention type may have another number.
        self.block_heads = num_heads
        self.feat_size_of_model = feat_size
        self.num_prefix_tokens = num_prefix_tokens
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
            self.proj = nn.Linear(proj.in_features, proj.out_features, bias=False, **dd)

    def forward(  # type: ignore[override]  # as timm's blocks call it
        self,
        x: Tensor,
        attn_mask: Tensor | TokenMap | ImageMaps | None = None,
        is_causal: bool = False,
        rope: Tensor | None = None,
        shared_rel_pos_bias: Tensor | TokenMap | None = None,
    ) -> Tensor:
        """Mix tokens x `[B, P + N, C]`.

        attn_mask: bool `[B, 1, 1, P + N]`, True where a token counts.
        rope: sines and cosines of timm's rotary embedding, for attention types with a query and a key of each token.

        ValueError for is_causal, a bias of scores, and masks of pairs. Models that follow the map of their images pass
        a `TokenMap` as attn_mask or shared_rel_pos_bias.
        """
        if isinstance(attn_mask, ImageMaps):
            return mix_each_map(self._mix_map, x, attn_mask, rope)
        if isinstance(shared_rel_pos_bias, TokenMap):
            attn_mask, shared_rel_pos_bias = shared_rel_pos_bias, None
        if shared_rel_pos_bias is not None:
            raise ValueError(f"shared_rel_pos_bias must be None for {type(self).__name__}.")
        token_map, mask = (attn_mask, attn_mask.mask) if isinstance(attn_mask, TokenMap) else (None, attn_mask)
        if mask is not None and mask.is_floating_point() and mask.ndim == 4:
            if self.traits.needs_grid and token_map is None:
                name = type(self).__name__
                raise ValueError(f"swap_attention must be used for {name} in batches of many shapes.")
            mask = tokens_that_count(mask)[:, None, None]
        mask = padding_mask(mask, is_causal, x)
        if not self.traits.needs_grid:
            feat_size, num_prefix_tokens = (x.shape[1], 1), 0
        elif token_map is not None:
            feat_size, num_prefix_tokens = token_map.feat_size, token_map.num_prefix_tokens
        else:
            square = square_layout(x, self.feat_size_of_model, self.num_prefix_tokens)
            feat_size, num_prefix_tokens = square.feat_size, square.num_prefix_tokens
        return self.mix_counted(x, self.layout(x, feat_size, num_prefix_tokens, mask), self._rotation(rope))

    def _mix_map(self, x: Tensor, feat_size: tuple[int, int], rope: Tensor | None) -> Tensor:
        """Mix tokens `[B, P + N, C]` of a map."""
        num_prefix_tokens = x.shape[1] - feat_size[0] * feat_size[1]
        if not self.traits.needs_grid:
            feat_size, num_prefix_tokens = (x.shape[1], 1), 0
        return self.mix(x, self.layout(x, feat_size, num_prefix_tokens, None), self._rotation(rope))

    def _rotation(self, rope: Tensor | None) -> partial[Tensor] | None:
        return None if rope is None else partial(rotate_tokens, rope=rope, half=self.rotate_half)

    def set_window_size(self, window_size: tuple[int, int]) -> None:
        """Do as `resize`; BEiT's `set_input_size` calls its attentions by this name."""
        self.resize(window_size)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        # Version 0.2.0 named the norms of rotary models q_norm.norm and k_norm.norm.
        old = f"{prefix}q_norm.norm.", f"{prefix}k_norm.norm."
        for name in [name for name in state_dict if name.startswith(old)]:
            state_dict[name.replace("_norm.norm.", "_norm.")] = state_dict.pop(name)
        self.resample_state(prefix, state_dict)
        super()._load_from_state_dict(state_dict, prefix, *args)


# Global names in this module, so that models with them can be pickled.
VIT_ATTENTIONS: dict[str, type[ViTAttention]] = {
    name: type(f"ViT{cls.__name__}", (ViTAttention, cls), {"__module__": __name__, "__doc__": cls.__doc__})
    for name, cls in ATTENTIONS.items()
}
globals().update({cls.__name__: cls for cls in VIT_ATTENTIONS.values()})


def check_options(kind: str, options: dict[str, Any]) -> None:
    """ValueError for an option that the attention type does not have, or gets from its block."""
    accepted = {*attention_options(attention_class(kind)), "sr_ratio"} - BLOCK_ARGUMENTS
    unknown = sorted(options.keys() - accepted)
    if unknown:
        raise ValueError(f"Options of {kind!r} must be among {', '.join(sorted(accepted))}, got {unknown[0]!r}.")


class AttnLayer(str):
    """The name, in timm's table of attention layers, of an attention type with options; calling it makes a layer."""

    make: partial[ViTAttention]

    def __call__(self, *args: Any, **kwargs: Any) -> ViTAttention:
        return self.make(*args, **kwargs)


class _AttnLayers(dict):
    """timm's table of attention layers, which also makes an `AttnLayer` from its name, as a saved model notes it."""

    def get(self, name: Any, default: Any = None) -> Any:
        if name not in self and str(name).startswith("soft_vit.attn_layer("):
            call: Any = ast.parse(name, mode="eval").body
            options = {option.arg: ast.literal_eval(option.value) for option in call.keywords}
            attn_layer(*map(ast.literal_eval, call.args), **options)
        return super().get(name, default)


timm_vit.ATTN_LAYERS = _AttnLayers(timm_vit.ATTN_LAYERS)


class _Layer:
    """The class for an `AttnLayer` in timm's table."""

    make: partial[ViTAttention]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.make(*args, **kwargs)


def attn_layer(
    kind: str, feat_size: tuple[int, int] | None = None, num_prefix_tokens: int | None = None, **options: Any
) -> AttnLayer:
    """Return an attention for the argument `attn_layer` of timm's VisionTransformer.

    >>> attention = attn_layer("performer", num_features=64)
    >>> model = timm.create_model("vit_tiny_patch16_224", attn_layer=attention)

    timm's blocks do not pass a map to their attention. By default it is the largest square after at most five prefix
    tokens; otherwise give feat_size (H, W) and num_prefix_tokens. Models by name (`performer_vit_tiny_patch16`) and
    those of `swap_attention` follow the map of each image.

    options: of the attention type, and sr_ratio (default 2), the side of the window that a reduced token summarises.
    ValueError for an unknown type or option, or a feat_size that is not two positive integers.
    """
    check_options(kind, options)
    sides = feat_size if isinstance(feat_size, tuple | list) else ()
    if feat_size is not None and (len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides)):
        raise ValueError(f"feat_size must be two positive integers (H, W), got {feat_size!r}.")
    given = {"feat_size": feat_size, "num_prefix_tokens": num_prefix_tokens, **options}
    arguments = (f", {name}={value!r}" for name, value in given.items() if value is not None)
    layer = AttnLayer(f"soft_vit.attn_layer({kind!r}{''.join(arguments)})")
    layer.make = partial(VIT_ATTENTIONS[kind], **given)
    timm_vit.ATTN_LAYERS[layer] = type(layer, (_Layer,), {"make": layer.make})
    return layer
