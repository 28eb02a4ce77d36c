"""What autograd stores for backward, the largest tensor that is made, and what a checkpoint holds."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def saved_bytes(compute: Callable[[], Tensor], apart: Iterable[Tensor] = ()) -> int:
    """Return the bytes that autograd keeps after compute(), each storage once, without those of the tensors apart."""
    storages = {}

    def pack(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        assert compute().requires_grad
    for x in apart:
        storages.pop(x.untyped_storage().data_ptr(), None)
    return sum(storages.values())


class LargestTensor(TorchDispatchMode):
    """Records the number of elements in the largest storage that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        made = [x.untyped_storage().nbytes() // x.element_size() for x in tree_leaves(out) if isinstance(x, Tensor)]
        self.numel = max([self.numel, *made])
        return out


def leaves(content: object, name: str = "") -> dict[str, object]:
    """Values of nested dictionaries and lists by their path."""
    if isinstance(content, dict | list | tuple):
        pairs = content.items() if isinstance(content, dict) else enumerate(content)
        return {key: leaf for k, v in pairs for key, leaf in leaves(v, f"{name}.{k}").items()}
    return {name: content}
