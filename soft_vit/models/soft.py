"""SOFT, normalised SOFT and the same pyramid with other attentions in timm: configurations and entrypoints.

Lu et al., "SOFT: Softmax-free Transformer with Linear Complexity", NeurIPS 2021, arXiv 2110.11945, and "Softmax-free
Linear Transformers", IJCV 2024, arXiv 2207.03341.
"""

import logging
from typing import Any

from timm.models import PretrainedCfg, generate_default_cfgs
from torch import nn

from soft_vit.layers import attention_class
from soft_vit.models.entrypoints import imagenet_cfg, recorded_cfgs, register_entrypoints
from soft_vit.models.names import MODELS
from soft_vit.models.pyramid import PyramidViT
from soft_vit.weights import ENTRIES, WeightsError
from soft_vit.weights.load import SOURCES, build_model

# `register_entrypoints` adds the entrypoints.
__all__: list[str] = []

_logger = logging.getLogger(__name__)


def _cfg(name: str) -> dict[str, Any]:
    return imagenet_cfg(
        min_input_size=(3, 32, 32),
        first_conv="stages.0.patch_embed.0.conv",
        fixed_input_size=attention_class(MODELS[name]["attention"]).fixed_feat_size,
        license="mit",
        paper_ids=("arXiv:2110.11945", "arXiv:2207.03341"),
    )


default_cfgs = generate_default_cfgs(recorded_cfgs(MODELS, _cfg))


def _create_pyramid(name: str, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    overlay = kwargs.get("pretrained_cfg_overlay") or {}
    own_source = any(overlay.get(key) for key in SOURCES)
    if kwargs.get("pretrained_cfg") is None:
        if pretrained and not own_source:
            name = _with_weights(name, kwargs.get("attention"))
        else:
            # Classes, size and normalisation of recorded weights belong to those weights alone.
            kwargs["pretrained_cfg"] = PretrainedCfg(**_cfg(name), architecture=name)
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


register_entrypoints(__name__, MODELS, PyramidViT, _create_pyramid)
