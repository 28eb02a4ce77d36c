"""The named pyramids: SOFT in its sizes, and the same pyramid with each of the other attentions.

Lu et al., "SOFT: Softmax-free Transformer with Linear Complexity", NeurIPS 2021, arXiv 2110.11945, Table 1.
"""

import logging
from typing import Any

from timm.models import DefaultCfg, PretrainedCfg
from torch import nn

from soft_vit.layers import ATTENTIONS, attention_class
from soft_vit.models import base
from soft_vit.models.pyramid import PyramidViT
from soft_vit.weights import RECORDED_WEIGHTS, WeightsError
from soft_vit.weights.build import SOURCES, build_model

# `register_named` adds the entrypoints.
__all__ = ["PYRAMID_MODELS", "PYRAMID_SIZES", "model_name"]

_logger = logging.getLogger(__name__)

PYRAMID_SIZES: dict[str, dict[str, Any]] = {
    "pico": dict(embed_dims=(32, 64, 128, 160), num_heads=(1, 2, 4, 5), depths=(1, 1, 2, 1), stem_width=16),
    "tiny": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 2, 3, 2)),
    "small": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 3, 7, 4)),
    "base": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 3, 20, 4)),
    "medium": dict(embed_dims=(64, 128, 288, 512), num_heads=(2, 4, 9, 16), depths=(1, 3, 29, 5)),
    "large": dict(embed_dims=(64, 128, 320, 512), num_heads=(2, 4, 10, 16), depths=(1, 3, 40, 5)),
    "huge": dict(embed_dims=(64, 128, 352, 512), num_heads=(2, 4, 11, 16), depths=(1, 5, 49, 5)),
}
"""Arguments of each size (SOFT, Table 1); `base` is called `soft_small` in the released code."""
# Sizes of the pyramids with other attentions.
BASELINE_SIZES = ("pico", "tiny", "small")
SOFT = ("soft", "soft_norm", "soft_plus")


def model_name(attention: str, size: str) -> str:
    """Return the timm name of the pyramid with an attention, such as soft_tiny or linformer_pyramid_tiny."""
    return f"{attention}_{size}" if attention in SOFT else f"{attention}_pyramid_{size}"


def _pyramids(attention: str) -> dict[str, dict[str, Any]]:
    """Return the arguments of the pyramids with an attention type by name."""
    sizes = PYRAMID_SIZES if attention in SOFT else BASELINE_SIZES
    models = {model_name(attention, size): dict(PYRAMID_SIZES[size], attention=attention) for size in sizes}
    if attention == "soft_plus":
        # Released models have softmax in the last stage and bottleneck tokens that grow with the image. These are for
        # training from scratch, without softmax and at a cost that is linear in the image's area.
        own = dict(stage4="soft_plus", class_token=False, global_pool="avg", max_bottleneck=(7, 7))
        return {name: {**arguments, **own} for name, arguments in models.items()}
    pure = {f"{name}_pure": dict(arguments, stage4="soft") for name, arguments in models.items()}
    return models | (pure if attention in SOFT else {})


PYRAMID_MODELS: dict[str, dict[str, Any]] = {}
"""Arguments of every named model of the pyramid."""
PyramidViT.variants = PYRAMID_MODELS


def _cfg(name: str) -> dict[str, Any]:
    return base.imagenet_cfg(
        min_input_size=(3, 32, 32),
        first_conv="stages.0.patch_embed.0.conv",
        fixed_input_size=attention_class(PYRAMID_MODELS[name]["attention"]).traits.fixed_grid,
        license="mit",
        paper_ids=("arXiv:2110.11945", "arXiv:2207.03341"),
    )


default_cfgs: dict[str, DefaultCfg] = {}


def _create_pyramid(name: str, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    own_source = any((kwargs.get("pretrained_cfg_overlay") or {}).get(key) for key in SOURCES)
    if kwargs.get("pretrained_cfg") is None:
        if pretrained and not own_source:
            name = _with_weights(name, kwargs.get("attention"))
        else:
            # Without weights, not the default tag, which has the classes, image size and normalisation of its weights.
            kwargs["pretrained_cfg"] = PretrainedCfg(**_cfg(name), architecture=name)
    feature_cfg = dict(out_indices=(0, 1, 2, 3), feature_cls="getter")
    return build_model(PyramidViT, name, pretrained, feature_cfg=feature_cfg, arguments=PYRAMID_MODELS[name], **kwargs)


def _with_weights(name: str, attention: str | None) -> str:
    """Return the model to build for pretrained=True: `soft_norm_*` for a `soft_*` without released weights."""
    normalised = name.replace("soft_", "soft_norm_", 1)
    recorded = {entry.model for entry in RECORDED_WEIGHTS.values()}
    if not name.startswith("soft_") or name in recorded or normalised not in recorded:
        return name
    if attention not in (None, "soft_norm"):
        what = f"'soft_norm' for pretrained weights of {name}, got {attention!r}"
        raise WeightsError(f"attention must be {what}. The weights are those of {normalised}.")
    _logger.warning("The released weights of %s have the normalised attention: %s is built.", name, normalised)
    return normalised


def register_pyramids(attention: str) -> None:
    """Register the pyramids with an attention type."""
    models = _pyramids(attention)
    PYRAMID_MODELS.update(models)
    default_cfgs.update(base.make_default_cfgs(models, _cfg))
    for name in models:
        base.register_named(name, _create_pyramid)


for _kind in ATTENTIONS:
    register_pyramids(_kind)
