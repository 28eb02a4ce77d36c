"""SOFT, normalised SOFT and the same pyramid with other attentions in timm: configurations and entrypoints.

Lu et al., "SOFT: Softmax-free Transformer with Linear Complexity", NeurIPS 2021, arXiv 2110.11945, and "Softmax-free
Linear Transformers", IJCV 2024, arXiv 2207.03341.
"""

from collections.abc import Callable
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

from soft_vit.layers import ATTENTIONS, attention_class
from soft_vit.models.checkpoint import checkpoint_filter_fn
from soft_vit.models.pyramid import PyramidViT
from soft_vit.models.variants import SIZES


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


default_cfgs = generate_default_cfgs(
    {name: _cfg(fixed_input_size=attention_class(args["attention"]).fixed_feat_size) for name, args in MODELS.items()}
)


def _create_pyramid(variant: str, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    overlay = dict(kwargs.pop("pretrained_cfg_overlay", None) or {})
    # timm clears the flag where the caller names a source.
    overlay.setdefault("custom_load", True)
    return build_model_with_cfg(
        PyramidViT,
        variant,
        pretrained,
        pretrained_cfg_overlay=overlay,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg=dict(out_indices=kwargs.pop("out_indices", (0, 1, 2, 3)), feature_cls="getter"),
        **kwargs,
    )


def _make_entrypoint(name: str, model_args: dict[str, Any]) -> Callable[..., nn.Module]:
    def entrypoint(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return _create_pyramid(name, pretrained, **dict(model_args, **kwargs))

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__doc__ = f"The pyramid with {model_args['attention']} attention; keyword arguments of `PyramidViT`."
    return register_model(entrypoint)


for _name, _model_args in MODELS.items():
    globals()[_name] = _make_entrypoint(_name, _model_args)
