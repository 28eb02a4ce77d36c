"""BatchNorm folded into convolutions, for inference."""

import copy
from itertools import pairwise
from typing import Any

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from soft_vit.layers import ConvNormAct


def fold_batch_norm(model: nn.Module) -> nn.Module:
    """Return a copy of the model, in evaluation mode, with BatchNorms folded into the convolutions before them.

    These are found in `ConvNormAct` units and in any nn.Sequential, also of a features_only model or a detector. The
    copy computes the same up to rounding, cannot be trained, and has other parameter names: it is for inference and
    export, not for checkpoints. ValueError for a model without a BatchNorm after a convolution.
    """
    model = copy.deepcopy(model).eval()
    found = False
    for unit in model.modules():
        if not isinstance(unit, ConvNormAct | nn.Sequential):
            continue
        layers: Any = list(unit.named_children())
        for (conv_name, conv), (norm_name, norm) in pairwise(layers):
            # Synchronised and frozen ones are other classes with the same statistics.
            is_norm = getattr(norm, "running_mean", None) is not None
            if isinstance(conv, nn.Conv2d) and is_norm:
                setattr(unit, conv_name, fuse_conv_bn_eval(conv, norm))
                setattr(unit, norm_name, nn.Identity())
            # A model that was folded before has none.
            found |= isinstance(conv, nn.Conv2d) and (is_norm or isinstance(norm, nn.Identity))
    if not found:
        raise ValueError(f"model must have a BatchNorm after a convolution, got {type(model).__name__}.")
    return model.requires_grad_(False)
