"""What timm is told of the models: their configurations, and a function for each name that builds it."""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import PretrainedCfg, register_model
from torch import nn

from soft_vit.weights import ENTRIES

__all__ = ["imagenet_cfg", "recorded_cfgs", "register_entrypoints"]

Cfgs = dict[str, dict[str, Any] | PretrainedCfg]
"""What timm's `generate_default_cfgs` takes."""


def imagenet_cfg(**kwargs: Any) -> dict[str, Any]:
    """A configuration of ImageNet at 224 pixels, with what differs."""
    return {
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": (7, 7),
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "fixed_input_size": False,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
        **kwargs,
    }


def recorded_cfgs(names: Iterable[str], cfg: Callable[[str], Mapping[str, Any]]) -> Cfgs:
    """Configurations of models by name, with a tag for each of their recorded weights, without where there are none.

    cfg: gives what the configurations of a model have in common.
    """
    names = list(names)
    recorded = {tag: {**cfg(entry.model), **entry.timm_cfg()} for tag, entry in ENTRIES.items() if entry.model in names}
    with_weights = {tag.split(".")[0] for tag in recorded}
    return {**recorded, **{name: dict(cfg(name)) for name in names if name not in with_weights}}


def register_entrypoints(
    module: str, names: Iterable[str], cls: type[nn.Module], create: Callable[..., nn.Module]
) -> None:
    """Register functions with timm that build models of a class, and define them in a module with `default_cfgs`.

    create: takes a name, pretrained, and the keyword arguments of the caller.
    """
    for name in names:
        entrypoint = _entrypoint(name, create)
        entrypoint.__name__ = entrypoint.__qualname__ = name
        entrypoint.__module__ = module
        entrypoint.__doc__ = f"The model of this name; keyword arguments of `{cls.__name__}`."
        setattr(sys.modules[module], name, register_model(entrypoint))


def _entrypoint(name: str, create: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def entrypoint(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return create(name, pretrained, **kwargs)

    return entrypoint
