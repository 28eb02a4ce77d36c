"""Registries of scope `soft_vit`.

MMEngine imports `soft_vit.registry` when it meets `type="soft_vit.Name"` in any scope. `register` also enters the class
into MMEngine's root registry, which every OpenMMLab project falls back to, so that a bare `type="Name"` works after
`custom_imports`.
"""

from collections.abc import Callable
from typing import TypeVar

from mmengine import registry as root
from mmengine.registry import Registry

__all__ = [
    "DATASETS",
    "HOOKS",
    "LOG_PROCESSORS",
    "METRICS",
    "MODELS",
    "OPTIM_WRAPPERS",
    "OPTIM_WRAPPER_CONSTRUCTORS",
    "TRANSFORMS",
    "VISBACKENDS",
    "register",
]

_LOCATIONS = ["soft_vit.engine", "soft_vit.dense"]

MODELS = Registry("model", parent=root.MODELS, scope="soft_vit", locations=_LOCATIONS)
DATASETS = Registry("dataset", parent=root.DATASETS, scope="soft_vit", locations=_LOCATIONS)
TRANSFORMS = Registry("transform", parent=root.TRANSFORMS, scope="soft_vit", locations=_LOCATIONS)
HOOKS = Registry("hook", parent=root.HOOKS, scope="soft_vit", locations=_LOCATIONS)
METRICS = Registry("metric", parent=root.METRICS, scope="soft_vit", locations=_LOCATIONS)
LOG_PROCESSORS = Registry("log_processor", parent=root.LOG_PROCESSORS, scope="soft_vit", locations=_LOCATIONS)
VISBACKENDS = Registry("vis_backend", parent=root.VISBACKENDS, scope="soft_vit", locations=_LOCATIONS)
OPTIM_WRAPPERS = Registry("optim_wrapper", parent=root.OPTIM_WRAPPERS, scope="soft_vit", locations=_LOCATIONS)
OPTIM_WRAPPER_CONSTRUCTORS = Registry(
    "optim_wrapper_constructor", parent=root.OPTIM_WRAPPER_CONSTRUCTORS, scope="soft_vit", locations=_LOCATIONS
)

T = TypeVar("T", bound=type)


def register(registry: Registry) -> Callable[[T], T]:
    """Class decorator: enter a class into one of the registries above and into its root registry."""

    def enter(cls: T) -> T:
        registry.register_module(module=cls)
        registry.parent.register_module(module=cls)
        return cls

    return enter
