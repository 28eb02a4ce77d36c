"""What autograd stores for backward."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


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
