"""Pyramids of this package as a backbone for mmdet, mmseg and mmpretrain."""

from collections.abc import Sequence
from typing import Any

from mmengine.model import BaseModule
from timm.layers import to_2tuple
from torch import Tensor

from soft_vit.dense.features import TimmFeatures
from soft_vit.layers import ATTENTIONS, attention_options
from soft_vit.models import PYRAMID_MODELS
from soft_vit.ops.numerics import check_choice
from soft_vit.registry import MODELS, register
from soft_vit.weights.load import load_into
from soft_vit.weights.read import NotedWeights, unwrap_state_dict


@register(MODELS)
class SOFT(TimmFeatures, BaseModule):
    """A pyramid as a backbone: `dict(type="SOFT", arch="soft_norm_tiny")` with soft_vit.dense in custom_imports.

    arch: timm name of a pyramid of this package. out_indices: stages whose maps are returned, 0 to 3, of strides 4, 8,
    16, 32. max_bottleneck: largest grid of bottleneck tokens; more are pooled, so that the cost is linear in the
    image's area. None keeps the model's own bound; released models have none. Ignored by attentions without this
    option. kwargs: frozen_stages, norm_eval, out_norm and with_cp of `TimmFeatures`, and options of `PyramidViT`, such
    as drop_path_rate.

    init_cfg: `dict(type="Pretrained", checkpoint=FILE)` loads a classification model, released or trained here, from a
    torch or safetensors file or `timm://NAME`. It also loads weights of this class, with `prefix="backbone."` from a
    detector, a segmentor or a classifier. Code in a file is never executed. MMEngine handles other types.

    Raises ValueError for an unknown name or option, and for weights of another model.
    """

    def __init__(
        self,
        arch: str = "soft_norm_tiny",
        *,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        max_bottleneck: int | tuple[int, int] | None = (7, 7),
        init_cfg: dict | list[dict] | None = None,
        **kwargs: Any,
    ) -> None:
        check_choice("arch", arch, tuple(PYRAMID_MODELS))
        if max_bottleneck is not None and _pools_bottleneck(arch, kwargs):
            kwargs["max_bottleneck"] = to_2tuple(max_bottleneck)
        configs = [init_cfg] if isinstance(init_cfg, dict) else list(init_cfg or ())
        start = dict(next((config for config in configs if config.get("type") == "Pretrained"), {}))
        path = start["checkpoint"] if start else ""
        super().__init__(arch, checkpoint_path=path, out_indices=out_indices, **kwargs)
        self.prefix = start.get("prefix") or ""
        self.init_cfg = [config for config in configs if config.get("type") != "Pretrained"]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Turn images `[B, 3, H, W]` of at least 32 x 32 pixels into contiguous maps `[B, C_i, H_i, W_i]`."""
        return tuple(super().forward(x))

    def init_weights(self) -> None:
        BaseModule.init_weights(self)
        TimmFeatures.init_weights(self)

    def load_weights(self, content: dict) -> None:
        """Load weights of a classification model, of this class or, with a prefix, of a model that contains it."""
        weights = unwrap_state_dict(content, self.source)
        if self.prefix:
            inside = {name.removeprefix(self.prefix): w for name, w in weights.items() if name.startswith(self.prefix)}
            weights = NotedWeights(inside, weights.spec, f"{weights.source} with the prefix {self.prefix!r}")
        if self.state_dict().keys().isdisjoint(weights):
            super().load_weights(weights)
        else:
            load_into(self, weights)


def _pools_bottleneck(arch: str, options: dict[str, Any]) -> bool:
    """Return whether any attention of the pyramid has the option max_bottleneck."""
    kinds = options.get("attention", PYRAMID_MODELS[arch]["attention"])
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    # The model raises for unknown names.
    return any("max_bottleneck" in attention_options(ATTENTIONS[kind]) for kind in kinds if kind in ATTENTIONS)
