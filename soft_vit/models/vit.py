"""Isotropic vision transformers with any attention: `<kind>_vit_{tiny,small,base}_patch16` in timm.

Dosovitskiy et al., "An Image is Worth 16x16 Words", arXiv 2010.11929; sizes of DeiT, Touvron et al., arXiv 2012.12877.
Tokens are mixed by attention alone, so a comparison of these models compares attentions.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import timm.models.vision_transformer as timm_vit
from timm.models import DefaultCfg, generate_default_cfgs
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from soft_vit.layers import ATTENTIONS, attention_class, attention_options
from soft_vit.layers.attention.none import NoAttention
from soft_vit.layers.grid_vit import GridViT, follow_grid
from soft_vit.layers.mlp import Mlp
from soft_vit.layers.vit_attention import BLOCK_ARGUMENTS, ViTAttention, attn_layer
from soft_vit.models import base
from soft_vit.weights.adapter import Adapter

# `register_vits` adds the entrypoints.
__all__ = ["VIT_MODELS", "AttentionViT", "vit_name"]

VIT_SIZES = {
    "tiny": dict(embed_dim=192, depth=12, num_heads=3),
    "small": dict(embed_dim=384, depth=12, num_heads=6),
    "base": dict(embed_dim=768, depth=12, num_heads=12),
}


def vit_name(attention: str, size: str) -> str:
    """Return the timm name of the ViT with an attention, such as linear_vit_tiny_patch16."""
    return f"{attention}_vit_{size}_patch16"


VIT_MODELS: dict[str, dict[str, Any]] = {}
"""Arguments of every named model."""


class AttentionViT(GridViT, VisionTransformer):  # type: ignore[override]  # GridViT only binds blocks
    """timm's VisionTransformer with one of the attentions in every block; images `[B, in_chans, H, W]`.

    attention: a name of `soft_vit.layers.ATTENTIONS`.
    class_token, global_pool: by default a class token, and pooling by it, if the attention treats it as any other
        token; otherwise, and for `none`, the mean of all tokens.

    Other keyword arguments are those of timm's class, or options of the attention, such as num_features=64, and
    `sr_ratio`, the side of the window of tokens that a reduced token summarises.
    """

    adapter: ClassVar[Adapter] = Adapter({})
    """The names of released weights; by default none."""

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        attention: str = "soft",
        class_token: bool | None = None,
        global_pool: Any = None,
        **kwargs: Any,
    ) -> None:
        img_size = base.check_image_size(img_size)
        kind = attention_class(attention)
        if class_token is None:
            class_token = not kind.traits.needs_grid and kind is not NoAttention
        global_pool = ("token" if class_token else "avg") if global_pool is None else global_pool
        known = {*attention_options(kind), "sr_ratio"} - BLOCK_ARGUMENTS
        options = {name: kwargs.pop(name) for name in list(kwargs) if name in known}
        patch = base.check_image_size(patch_size)
        grid = (max(1, img_size[0] // patch[0]), max(1, img_size[1] // patch[1]))
        given: Any = dict(img_size=img_size, patch_size=patch_size, class_token=class_token, global_pool=global_pool)
        layer = attn_layer(attention, feat_size=grid, **options)
        super().__init__(**given, attn_layer=layer, **{"mlp_layer": Mlp, **kwargs})
        self.attention = attention
        if not any(isinstance(module, ViTAttention) for module in self.blocks.modules()):
            raise ValueError(f"block_fn must be a block that uses attn_layer, got {kwargs.get('block_fn')}.")
        follow_grid(self, (module for module in self.modules() if isinstance(module, ViTAttention)))
        base.add_img_size_hooks(self)

    @property
    def img_size(self) -> tuple[int, int]:
        """Height and width of the images that the position embedding is for."""
        return self.patch_embed.img_size

    def reset_classifier(self, *args: Any, **kwargs: Any) -> None:
        base.forget_classes(self)
        super().reset_classifier(*args, **kwargs)

    def from_released(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights of a ViT under this model's names, by timm's filter."""
        # The filter assumes square maps; `resample_state` resamples the position embedding.
        renamed = timm_vit.checkpoint_filter_fn({name: x for name, x in state.items() if name != "pos_embed"}, self)
        return renamed | {name: x for name, x in state.items() if name == "pos_embed"}

    def to_released(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights of this model under the released names, see `Adapter`; ValueError if it has none."""
        return self.adapter.to_released(state, self)


default_cfgs: dict[str, DefaultCfg] = {}


def register_vits(kind: str) -> None:
    """Register the ViTs with an attention type."""
    models = {vit_name(kind, size): dict(arguments, attention=kind) for size, arguments in VIT_SIZES.items()}
    VIT_MODELS.update(models)
    cfg = base.imagenet_cfg(pool_size=None, crop_pct=0.9, fixed_input_size=True, license="mit")
    default_cfgs.update(generate_default_cfgs(dict.fromkeys(models, cfg)))
    base.register_models(AttentionViT, models, feature_indices=3)


for _kind in ATTENTIONS:
    register_vits(_kind)
