"""When the weight of a layer may be read instead of calling the layer."""

import torch
from torch import nn
from torch._subclasses import FakeTensor


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a layer is of this very class, and its weight a parameter.

    Adapters and parametrizations change the class; pruning, weight norm and quantization the type of the weight.
    Forward hooks that only watch do not count: they do not run where the weight is read.
    Fake tensors stand for parameters where memory is counted; an exported model calls its layers.
    """
    if type(layer) is not kind or torch.compiler.is_exporting():
        return False
    return type(layer.weight) in (nn.Parameter, FakeTensor)
