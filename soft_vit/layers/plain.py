"""The rule for when code may read the weight of a layer instead of calling the layer."""

import torch
from torch import nn
from torch._subclasses import FakeTensor


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether the class of a layer is exactly kind, and its weight is a parameter.

    Adapters and parametrizations change the class; pruning, weight norm and quantization change the type of the weight.
    Forward hooks do not count: they do not run where the weight is read.
    Fake tensors stand for parameters where memory is counted; an exported model calls its layers.
    """
    if type(layer) is not kind or torch.compiler.is_exporting():
        return False
    return type(layer.weight) in (nn.Parameter, FakeTensor)
