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


def _child_of(parent: Registry) -> Registry:
    return Registry(parent.name, parent=parent, scope="soft_vit", locations=["soft_vit.engine", "soft_vit.dense"])


MODELS = _child_of(root.MODELS)
"""Registry of models."""
DATASETS = _child_of(root.DATASETS)
"""Registry of data sets."""
TRANSFORMS = _child_of(root.TRANSFORMS)
"""Registry of transforms of images."""
HOOKS = _child_of(root.HOOKS)
"""Registry of hooks."""
METRICS = _child_of(root.METRICS)
"""Registry of metrics."""
LOG_PROCESSORS = _child_of(root.LOG_PROCESSORS)
"""Registry of log processors."""
VISBACKENDS = _child_of(root.VISBACKENDS)
"""Registry of visualization backends."""
OPTIM_WRAPPERS = _child_of(root.OPTIM_WRAPPERS)
"""Registry of optimizer wrappers."""
OPTIM_WRAPPER_CONSTRUCTORS = _child_of(root.OPTIM_WRAPPER_CONSTRUCTORS)
"""Registry of constructors of optimizer wrappers."""

T = TypeVar("T", bound=type)


def register(registry: Registry) -> Callable[[T], T]:
    """Class decorator: enter a class into one of the registries above and into its root registry."""

    def enter(cls: T) -> T:
        registry.register_module(module=cls)
        registry.parent.register_module(module=cls)
        return cls

    return enter
