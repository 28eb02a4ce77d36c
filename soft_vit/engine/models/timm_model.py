"""A timm model by name, and the model inside MMEngine's wrappers."""

from typing import Any

import timm
from mmengine.model import BaseTTAModel, is_model_wrapper
from torch import nn

from soft_vit.engine.errors import one_line
from soft_vit.models.base import require_known
from soft_vit.weights import WeightsError

__all__ = ["create_timm_model", "unwrapped"]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside wrappers such as MMDistributedDataParallel and BaseTTAModel; another model as it is."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model


def create_timm_model(name: str, pretrained: bool, **options: Any) -> nn.Module:
    """`timm.create_model(name, pretrained, **options)`; the name may have a tag, or a source such as `hf-hub:`.

    Raises ValueError for a name that timm does not know and for weights that it cannot load.
    """
    require_known(name)
    try:
        return timm.create_model(name, pretrained=pretrained, **options)
    except WeightsError:
        raise
    except Exception as error:
        # Each library below timm has its own errors, from an unknown tag to a lost network.
        if pretrained:
            what, hint = "weights for", "timm.list_pretrained(), or give the path of a file of weights."
        else:
            what, hint = "model", "timm.list_models()."
        raise ValueError(f"timm gives no {what} {name!r} ({one_line(error)}); choose a name of {hint}") from error
