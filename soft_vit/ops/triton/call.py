"""Calls of compiled kernels without what Triton works out again in every call."""

from collections.abc import Sequence
from typing import Any

import triton
from torch import Tensor

# Triton compiles for the dtypes and the alignment of pointers, for the kind of numbers, and for constants. All of that
# is in the key, and the numbers themselves, so that one entry has one compiled kernel.
_COMPILED: dict[tuple, tuple[Any, tuple]] = {}
_MOST_ENTRIES = 4096
# Before, a compiled kernel wanted other arguments.
_CAN_BE_CALLED = tuple(int(number) for number in triton.__version__.split(".")[:2]) >= (3, 6)


def call(
    kernel: Any, grid: tuple[int, int, int], tensors: Sequence[Tensor], numbers: tuple, options: dict[str, Any]
) -> None:
    """`kernel[grid](*tensors, *numbers, **options)` on the current device.

    Binding 40 arguments takes Triton longer than a GPU computes a small case.
    """
    key = (
        kernel,
        tensors[0].device,
        tuple([(tensor.dtype, tensor.data_ptr() % 16) for tensor in tensors]),
        numbers,
        tuple(options.values()),
    )
    known = _COMPILED.get(key)
    if known is not None:
        compiled, constants = known
        compiled[grid](*tensors, *numbers, *constants)
        return
    compiled = kernel[grid](*tensors, *numbers, **options)
    # The interpreter compiles nothing.
    if compiled is not None and _CAN_BE_CALLED and len(_COMPILED) < _MOST_ENTRIES:
        names = [parameter.name for parameter in kernel.params[len(tensors) + len(numbers) :]]
        _COMPILED[key] = (compiled, tuple(options[name] for name in names))
