"""Build a timm model by name, unwrap models from MMEngine's wrappers, and name the classes of data sets."""

from typing import Any

import timm
from mmengine.model import BaseTTAModel, is_model_wrapper
from timm.models import PretrainedCfg
from torch import nn

from soft_vit.models.base import require_known
from soft_vit.text_tables import one_line
from soft_vit.weights import RECORDED_WEIGHTS, WeightsError
from soft_vit.weights.build import is_own_model
from soft_vit.weights.spec import ModelSpec


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside wrappers such as MMDistributedDataParallel and BaseTTAModel."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model


def classes_of(dataset: Any) -> tuple[str, ...]:
    """Return the names of the classes of a data set; () without any."""
    return tuple(map(str, getattr(dataset, "metainfo", {}).get("classes") or ()))


def timm_network(model: nn.Module) -> nn.Module | None:
    """Return the timm model of a classifier, or None for a model of another kind."""
    network = getattr(model, "model", None)
    return network if isinstance(network, nn.Module) and hasattr(network, "pretrained_cfg") else None


def backbone_spec(model: nn.Module) -> ModelSpec | None:
    """Return the record of the timm model that is the backbone of a detector or a segmentor, or None without one."""
    specs = (getattr(module, "spec", None) for module in model.modules())
    return next((spec for spec in specs if isinstance(spec, ModelSpec)), None)


def published_spec(name: str) -> ModelSpec:
    """Return the record of the published weights of a timm model; name: may have a tag or a source.

    Raises ValueError for an unknown tag or source.
    """
    if ":" in name:
        return ModelSpec.of(create_timm_model(name, pretrained=False, device="meta"))
    require_known(name)
    cfg = timm.get_pretrained_cfg(name) or PretrainedCfg(architecture=name)
    entry = RECORDED_WEIGHTS.get(f"{name.partition('.')[0]}.{cfg.tag}")
    published: dict[str, Any] = {"num_classes": cfg.num_classes, "in_chans": cfg.input_size[0]}
    published |= {"img_size": cfg.input_size[1:]} if is_own_model(name) else {}
    return ModelSpec.of_cfg(cfg, {**published, **(entry.options if entry else {})})


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
