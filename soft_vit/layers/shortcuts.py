"""What a layer asks before it leaves the plain path: is anybody watching, hooked on, or capturing a graph?"""

from collections.abc import Sequence

import torch
import torch.fx
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn.modules import module as torch_module

_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


def is_untouched(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling the layer does no more than a layer of this very kind does with its weights.

    Adapters, quantisation, offloading and counters replace layers, weights or forward methods, or put hooks on them.
    """
    if type(layer) is not kind or "forward" in layer.__dict__:
        return False
    if any(getattr(layer, f"_{hooks}") or getattr(torch_module, f"_global_{hooks}") for hooks in _HOOKS):
        return False
    weight = getattr(layer, "weight", None)
    # Fake tensors take the shortcut as real ones do, so that what is counted with them is true; an exported graph
    # keeps plain layers.
    if isinstance(weight, FakeTensor):
        return not torch.compiler.is_compiling()
    return type(weight) in (Tensor, nn.Parameter, type(None))


def keeps_autograd_graph(x: Tensor) -> bool:
    """Whether this very call builds the graph of x: not in inference, nor while something else records the model."""
    recorded = isinstance(x, torch.fx.Proxy) or torch.compiler.is_compiling() or torch.jit.is_tracing()
    return torch.is_grad_enabled() and not recorded


def same_size(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two sizes are equal; in a graph that torch.export captures, False where only some images make them so.

    An ordinary comparison would tie such a graph to its answer. torch.compile captures another for another answer.
    """
    if not torch.compiler.is_exporting():
        return tuple(a) == tuple(b)
    return all(statically_known_true(x == y) for x, y in zip(a, b, strict=True))


def smaller(a: int, b: int) -> int:
    """The smaller of two sides, left open in a graph that torch.export captures for images of any size."""
    if not torch.compiler.is_exporting():
        return min(a, b)
    return torch.sym_min(a, b)  # type: ignore[return-value]  # a SymInt is an int to all that take sizes
