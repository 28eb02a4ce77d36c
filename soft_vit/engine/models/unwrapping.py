"""The model inside wrappers for several processes or test time augmentation."""

from mmengine.model import BaseTTAModel, is_model_wrapper
from torch import nn

__all__ = ["unwrapped"]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside wrappers such as MMDistributedDataParallel and BaseTTAModel; another model as it is."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model
