"""Whether a shortcut past a layer would go unnoticed."""

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.nn.modules import module as torch_module

_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


def has_hooks(layer: nn.Module) -> bool:
    """Whether somebody looks at what goes into the layer, or comes out of it."""
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
    # Shapes alone take the way of tensors, so that what they tell holds for those; an exported graph has plain layers.
    if isinstance(weight, FakeTensor):
        return not torch.compiler.is_compiling()
    return type(weight) in (Tensor, nn.Parameter, type(None))
