"""Build a timm model by name, and unwrap models from MMEngine's wrappers."""

from typing import Any

import timm
from mmengine.model import BaseTTAModel, is_model_wrapper
from torch import nn

from soft_vit.models.base import require_known
from soft_vit.text_tables import one_line
from soft_vit.weights import WeightsError


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside wrappers such as MMDistributedDataParallel and BaseTTAModel."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model


def pretrained_cfg_of(name: str) -> dict[str, Any]:
    """Return timm's pretrained configuration of a model by name, without its weights; {} for an unknown name.

    Raises ValueError for an unknown tag or source.
    """
    if ":" in name:
        return create_timm_model(name, pretrained=False).pretrained_cfg
    try:
        found = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise ValueError(f"{one_line(error)}; choose a name of timm.list_pretrained().") from error
    return {} if found is None else found.to_dict()


def create_timm_model(name: str, pretrained: bool, **options: Any) -> nn.Module:
    """Return `timm.create_model(name, pretrained, **options)`.

    name: may have a tag, or a source such as `hf-hub:`. Raises ValueError for an unknown name, and for weights that
    cannot be loaded.
    """
    require_known(name)
    try:
        return timm.create_model(name, pretrained=pretrained, **options)
    except WeightsError:
        raise
    except Exception as error:
        # Unknown tags, lost connections and so on raise errors of several libraries.
        names = "timm.list_pretrained()" if pretrained else "timm.list_models()"
        raise ValueError(f"name must be of {names}, got {name!r} ({one_line(error)}).") from error
