"""When the weight of a layer may be read instead of calling the layer."""

from torch import nn


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a layer is of this very class, and its weight a parameter.

    Adapters and parametrizations change the class; pruning, weight norm and quantization the type of the weight.
    Forward hooks that only watch do not count: they do not run where the weight is read.
    """
    return type(layer) is kind and type(layer.weight) is nn.Parameter
