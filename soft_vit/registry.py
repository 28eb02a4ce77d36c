"""Registries of scope `soft_vit`.

MMEngine imports `soft_vit.registry` when it meets `type="soft_vit.Name"` in any scope. A class also enters MMEngine's
root registry, which every OpenMMLab project falls back to, so that a bare `type="Name"` works after `custom_imports`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from mmengine import registry as root
from mmengine.registry import Registry


class _SharedRegistry(Registry):
    def __init__(self, parent: Registry) -> None:
        super().__init__(parent.name, parent=parent, scope="soft_vit", locations=["soft_vit.engine", "soft_vit.dense"])

    def _register_module(self, *args: Any, **kwargs: Any) -> None:
        super()._register_module(*args, **kwargs)
        self.parent._register_module(*args, **kwargs)


MODELS = _SharedRegistry(root.MODELS)
"""Registry of models."""
DATASETS = _SharedRegistry(root.DATASETS)
"""Registry of data sets."""
TRANSFORMS = _SharedRegistry(root.TRANSFORMS)
"""Registry of transforms of images."""
HOOKS = _SharedRegistry(root.HOOKS)
"""Registry of hooks."""
METRICS = _SharedRegistry(root.METRICS)
"""Registry of metrics."""
LOG_PROCESSORS = _SharedRegistry(root.LOG_PROCESSORS)
"""Registry of log processors."""
VISBACKENDS = _SharedRegistry(root.VISBACKENDS)
"""Registry of visualization backends."""
OPTIM_WRAPPERS = _SharedRegistry(root.OPTIM_WRAPPERS)
"""Registry of optimizer wrappers."""
OPTIM_WRAPPER_CONSTRUCTORS = _SharedRegistry(root.OPTIM_WRAPPER_CONSTRUCTORS)
"""Registry of constructors of optimizer wrappers."""
PARAM_SCHEDULERS = _SharedRegistry(root.PARAM_SCHEDULERS)
"""Registry of schedules of learning rates."""

T = TypeVar("T", bound=type)


def register(registry: Registry, former_name: str | None = None) -> Callable[[T], T]:
    """Class decorator: enter a class into one of the registries above, also under a name that saved configs have."""

    def enter(cls: T) -> T:
        registry.register_module([cls.__name__, *([former_name] if former_name else [])], module=cls)
        return cls

    return enter
