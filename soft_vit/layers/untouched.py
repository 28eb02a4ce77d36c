"""Whether a shortcut past a layer would go unnoticed."""

from torch import nn
from torch.nn.modules import module as torch_module


def is_untouched(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling the layer is no more than what a layer of this very kind does with its weights.

    Adapters, quantisation and counters replace layers or put hooks on them.
    """
    hooks = (layer._forward_hooks, layer._forward_pre_hooks)
    everywhere = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
    return type(layer) is kind and not any(hooks) and not any(everywhere)
