"""The model inside what shares it out over processes."""

from mmengine.model import is_model_wrapper
from torch import nn

__all__ = ["unwrapped"]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model that a wrapper, such as MMDistributedDataParallel, holds; a model without one as it is."""
    return model.module if is_model_wrapper(model) else model
