"""The model inside what shares it out over processes, or shows it several views."""

from mmengine.model import BaseTTAModel, is_model_wrapper
from torch import nn

__all__ = ["unwrapped"]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model that wrappers, such as MMDistributedDataParallel, hold; a model without one as it is.

    As when MMEngine loads weights, that of test time augmentation is a wrapper, alone or inside of another one.
    """
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model
