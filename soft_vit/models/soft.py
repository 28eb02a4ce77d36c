"""SOFT, normalised SOFT and the same pyramid with other attentions in timm: configurations and entrypoints.

Lu et al., "SOFT: Softmax-free Transformer with Linear Complexity", NeurIPS 2021, arXiv 2110.11945, and "Softmax-free
Linear Transformers", IJCV 2024, arXiv 2207.03341.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import (
    PretrainedCfg,
    build_model_with_cfg,
    generate_default_cfgs,
    register_model,
    resolve_pretrained_cfg,
)
from torch import nn

from soft_vit.layers import ATTENTIONS, attention_class
from soft_vit.models.checkpoint import LENIENT, checkpoint_filter_fn
from soft_vit.models.pretrained import ENTRIES, entry_cfg, require_recorded, weights_file
from soft_vit.models.pyramid import PyramidViT
from soft_vit.models.variants import SIZES
from soft_vit.weights import Entry


def _cfg(**kwargs: Any) -> dict[str, Any]:
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
        # A file is read by PyramidViT.load_pretrained.
        "custom_load": True,
        "license": "mit",
        "paper_ids": ("arXiv:2110.11945", "arXiv:2207.03341"),
        **kwargs,
    }


BASELINE_SIZES = ("pico", "tiny", "small")


def _timm_name(attention: str, size: str) -> str:
    return f"{attention}_{size}" if attention in ("soft", "soft_norm") else f"{attention}_pyramid_{size}"


def _model_table() -> dict[str, dict[str, Any]]:
    """Arguments of every named model: the family in all sizes, the other attentions in the sizes of comparisons."""
    table = {}
    for attention in ATTENTIONS:
        family = attention in ("soft", "soft_norm")
        for size in SIZES if family else BASELINE_SIZES:
            table[_timm_name(attention, size)] = dict(SIZES[size], attention=attention)
    return table


MODELS = _model_table()


def model_name(attention: str, size: str) -> str:
    """The timm name of the pyramid with an attention, such as soft_tiny or linformer_pyramid_tiny.

    Raises ValueError for an attention or a size without a model.
    """
    attention_class(attention)
    name = _timm_name(attention, size)
    if name not in MODELS:
        raise ValueError(f"There is no model {name}; use size {', '.join(BASELINE_SIZES)} for {attention}.")
    return name


def _family_cfg(name: str, **kwargs: Any) -> dict[str, Any]:
    return _cfg(fixed_input_size=attention_class(MODELS[name]["attention"]).fixed_feat_size, **kwargs)


def _pretrained_cfgs() -> dict[str, dict[str, Any]]:
    """Configurations for timm: of recorded weights under their tags, of models that have none without a tag."""
    recorded = {name: entry for name, entry in ENTRIES.items() if entry.model in MODELS}
    cfgs = {name: _family_cfg(entry.model, **entry_cfg(entry)) for name, entry in recorded.items()}
    with_weights = {entry.model for entry in recorded.values()}
    return cfgs | {name: _family_cfg(name) for name in MODELS if name not in with_weights}


default_cfgs = generate_default_cfgs(_pretrained_cfgs())

SOURCES = ("url", "file", "state_dict", "hf_hub_id")


def _recorded(variant: str, cfg: PretrainedCfg) -> Entry | None:
    """The recorded weights that a configuration means; none where it has a tag of ours and a source of its own."""
    known = default_cfgs[variant].cfgs.get(cfg.tag)
    if known is None or cfg.source or any(getattr(cfg, key) != getattr(known, key) for key in SOURCES):
        return None
    return ENTRIES.get(f"{variant}.{cfg.tag}")


def _create_pyramid(
    variant: str,
    pretrained: bool = False,
    pretrained_cfg: str | dict[str, Any] | PretrainedCfg | None = None,
    pretrained_cfg_overlay: dict[str, Any] | None = None,
    pretrained_strict: bool = True,
    cache_dir: str | Path | None = None,
    **kwargs: Any,
) -> nn.Module:
    overlay = dict(pretrained_cfg_overlay or {})
    # timm clears the flag where the caller names a source.
    overlay.setdefault("custom_load", True if pretrained_strict else LENIENT)
    if pretrained_cfg is None and (not pretrained or any(overlay.get(key) for key in SOURCES)):
        # Classes, size and normalisation of recorded weights belong to those weights alone.
        pretrained_cfg = PretrainedCfg(**_family_cfg(variant, architecture=variant))
    cfg = resolve_pretrained_cfg(variant, pretrained_cfg, overlay)
    recorded = _recorded(variant, cfg) if pretrained else None
    if recorded is not None:
        overlay["file"] = str(weights_file(recorded, cache_dir))
    elif pretrained and not cfg.has_weights and not cfg.state_dict:
        require_recorded(variant)
    kwargs.setdefault("img_size", cfg.input_size[-2:])
    feature_cls = kwargs.get("feature_cls")
    if isinstance(feature_cls, str) and feature_cls != "getter":
        raise ValueError(f"feature_cls={feature_cls!r} takes tokens from stages, and no maps; leave it out.")
    if pretrained and kwargs.get("features_only"):
        # No head is kept, so none of the file's is missed.
        kwargs.setdefault("num_classes", 0)
    model = build_model_with_cfg(
        PyramidViT,
        variant,
        pretrained,
        pretrained_cfg=pretrained_cfg,
        pretrained_cfg_overlay=overlay,
        pretrained_filter_fn=partial(checkpoint_filter_fn, strict=pretrained_strict),
        pretrained_strict=pretrained_strict,
        feature_cfg=dict(out_indices=(0, 1, 2, 3), feature_cls="getter"),
        cache_dir=cache_dir,
        **kwargs,
    )
    if recorded is not None:
        # A model that is saved or published takes its configuration along, in which no path of this machine belongs.
        for part in (model, getattr(model, "model", model)):
            part.pretrained_cfg.pop("file", None)
    return model


def _make_entrypoint(name: str, model_args: dict[str, Any]) -> Callable[..., nn.Module]:
    def entrypoint(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return _create_pyramid(name, pretrained, **dict(model_args, **kwargs))

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__doc__ = f"The pyramid with {model_args['attention']} attention; keyword arguments of `PyramidViT`."
    return register_model(entrypoint)


for _name, _model_args in MODELS.items():
    globals()[_name] = _make_entrypoint(_name, _model_args)
