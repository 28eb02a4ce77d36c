"""SOFT, normalised SOFT and the same pyramid with other attentions in timm: configurations and entrypoints.

Lu et al., "SOFT: Softmax-free Transformer with Linear Complexity", NeurIPS 2021, arXiv 2110.11945, and "Softmax-free
Linear Transformers", IJCV 2024, arXiv 2207.03341.
"""

import logging
from collections.abc import Callable
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import PretrainedCfg, generate_default_cfgs, register_model
from torch import nn

from soft_vit.layers import attention_class
from soft_vit.models.names import MODELS
from soft_vit.models.pyramid import PyramidViT
from soft_vit.weights import ENTRIES, WeightsError
from soft_vit.weights.loading import SOURCES, build_model

# `register_model` adds the entrypoints.
__all__: list[str] = []

_logger = logging.getLogger(__name__)


def _cfg(name: str, **kwargs: Any) -> dict[str, Any]:
    return {
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "min_input_size": (3, 32, 32),
        "pool_size": (7, 7),
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "stages.0.patch_embed.0.conv",
        "classifier": "head",
        "fixed_input_size": attention_class(MODELS[name]["attention"]).fixed_feat_size,
        "license": "mit",
        "paper_ids": ("arXiv:2110.11945", "arXiv:2207.03341"),
        **kwargs,
    }


def _pretrained_cfgs() -> dict[str, dict[str, Any] | PretrainedCfg]:
    """Configurations for timm: of recorded weights under their tags, of models that have none without a tag."""
    recorded = {name: entry for name, entry in ENTRIES.items() if entry.model in MODELS}
    cfgs: dict[str, dict[str, Any] | PretrainedCfg] = {
        name: _cfg(entry.model, **entry.timm_cfg()) for name, entry in recorded.items()
    }
    with_weights = {entry.model for entry in recorded.values()}
    return cfgs | {name: _cfg(name) for name in MODELS if name not in with_weights}


default_cfgs = generate_default_cfgs(_pretrained_cfgs())


def _create_pyramid(name: str, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    overlay = kwargs.get("pretrained_cfg_overlay") or {}
    own_source = any(overlay.get(key) for key in SOURCES)
    if kwargs.get("pretrained_cfg") is None:
        if pretrained and not own_source:
            name = _with_weights(name, kwargs.get("attention"))
        else:
            # Classes, size and normalisation of recorded weights belong to those weights alone.
            kwargs["pretrained_cfg"] = PretrainedCfg(**_cfg(name, architecture=name))
    feature_cls = kwargs.get("feature_cls")
    if isinstance(feature_cls, str) and feature_cls != "getter":
        raise ValueError(f"feature_cls={feature_cls!r} would take tokens from stages instead of maps; leave it out.")
    feature_cfg = dict(out_indices=(0, 1, 2, 3), feature_cls="getter")
    return build_model(PyramidViT, name, pretrained, feature_cfg=feature_cfg, **{**MODELS[name], **kwargs})


def _with_weights(name: str, attention: str | None) -> str:
    """The model to build for pretrained=True: `soft_norm_*` for a `soft_*` whose only weights are normalised."""
    normalised = name.replace("soft_", "soft_norm_", 1)
    recorded = {entry.model for entry in ENTRIES.values()}
    if not name.startswith("soft_") or name in recorded or normalised not in recorded:
        return name
    if attention not in (None, "soft_norm"):
        raise WeightsError(
            f"The only pretrained weights of {name} are those of {normalised}, and attention={attention!r} is given; "
            "leave attention out, or take random weights (pretrained=False)."
        )
    _logger.warning("The released weights of %s are of the normalised attention: %s is built.", name, normalised)
    return normalised


def _make_entrypoint(name: str) -> Callable[..., nn.Module]:
    def entrypoint(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return _create_pyramid(name, pretrained, **kwargs)

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__doc__ = f"The pyramid with {MODELS[name]['attention']} attention; keyword arguments of `PyramidViT`."
    return register_model(entrypoint)


for _name in MODELS:
    globals()[_name] = _make_entrypoint(_name)
