"""Whether the weights of a layer may be used in a shortcut, without calling the layer."""

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.nn.modules import module as torch_module

_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


def has_hooks(layer: nn.Module) -> bool:
    """Whether hooks look at what goes into the layer, or comes out of it."""
    return any(getattr(layer, f"_{hooks}") or getattr(torch_module, f"_global_{hooks}") for hooks in _HOOKS)


def is_untouched(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling the layer is no more than what a layer of this very kind does with its weights.

    Adapters, quantisation, offloading and counters replace layers, weights or forward methods, or put hooks on them.
    """
    if type(layer) is not kind or "forward" in vars(layer):
        return False
    if has_hooks(layer):
        return False
    weight = getattr(layer, "weight", None)
    # Fake tensors take the shortcut as real ones do, so that what is counted with them is true; an exported graph
    # keeps plain layers.
    if isinstance(weight, FakeTensor):
        return not torch.compiler.is_compiling()
    return type(weight) in (Tensor, nn.Parameter, type(None))
