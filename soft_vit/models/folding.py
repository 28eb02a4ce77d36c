"""Fold BatchNorm into convolutions, for inference."""

import copy
from itertools import pairwise
from typing import Any

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from soft_vit.layers import ConvNormAct


def fold_batch_norm(model: nn.Module) -> nn.Module:
    """Return a copy of the model, in eval mode, with each BatchNorm folded into the convolution before it.

    Pairs are found in `ConvNormAct` units and in any nn.Sequential, also in a features_only model or a detector. The
    copy computes the same up to rounding. It is for inference and export: it cannot be trained, and the names of its
    parameters differ.
    """
    model = copy.deepcopy(model).eval()
    for unit in model.modules():
        if not isinstance(unit, ConvNormAct | nn.Sequential):
            continue
        layers: Any = list(unit.named_children())
        for (conv_name, conv), (norm_name, norm) in pairwise(layers):
            # Not by class: synchronised and frozen BatchNorms are of others, with the same statistics.
            if isinstance(conv, nn.Conv2d) and getattr(norm, "running_mean", None) is not None:
                setattr(unit, conv_name, fuse_conv_bn_eval(conv, norm))
                # The norm layer may end in an activation, as timm's do.
                setattr(unit, norm_name, getattr(norm, "act", nn.Identity()))
    return model.requires_grad_(False)
