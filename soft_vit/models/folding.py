"""A model prepared for inference alone."""

import copy
from typing import Any

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from soft_vit.layers import ConvNormAct


def fold_batch_norm(model: nn.Module) -> nn.Module:
    """A copy of the model in evaluation mode whose BatchNorms are part of the convolutions before them.

    Any module that has `ConvNormAct` units inside, such as a pyramid, its features_only form or a detector on it. The
    copy computes the same up to rounding, cannot be trained, and has other parameter names: it is for inference and
    export, not for checkpoints. Raises ValueError for a model without such a unit.
    """
    model = copy.deepcopy(model).eval()
    units = [module for module in model.modules() if isinstance(module, ConvNormAct)]
    if not units:
        raise ValueError(f"{type(model).__name__} has no convolution followed by BatchNorm to fold; use it as it is.")
    for unit in units:
        # Synchronised and frozen ones are other classes with the same statistics.
        norm: Any = unit.norm
        if getattr(norm, "running_mean", None) is not None:
            unit.conv, unit.norm = fuse_conv_bn_eval(unit.conv, norm), nn.Identity()
    return model.requires_grad_(False)
