"""Launches of kernels without what Triton works out again in every call."""

from typing import Any

import triton
from torch import Tensor

# Before, a compiled kernel wanted other arguments.
_CAN_BE_CALLED = tuple(int(number) for number in triton.__version__.split(".")[:2]) >= (3, 6)


class Launch:
    """`kernel[grid](*tensors, *numbers, **options)`: everything but the tensors, whose dtypes and device stay the same.

    Binding 40 arguments takes Triton longer than a GPU computes a small case.
    """

    def __init__(self, kernel: Any, grid: tuple[int, int, int], numbers: tuple, options: dict[str, Any]) -> None:
        self.kernel = kernel
        self.grid = grid
        self.numbers = numbers
        self.options = options
        # Of what may differ between calls, Triton compiles for the alignment of addresses.
        self._compiled: dict[tuple[int, ...], tuple[Any, tuple]] = {}

    def __call__(self, *tensors: Tensor) -> None:
        addresses = [tensor.data_ptr() for tensor in tensors]
        alignment = tuple([address % 16 for address in addresses])
        known = self._compiled.get(alignment)
        if known is not None:
            compiled, others = known
            # The driver is not asked about plain addresses, which are those of tensors that the caller holds.
            compiled[self.grid](*addresses, *others)
            return
        compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.options)
        # The interpreter compiles nothing.
        if compiled is not None and _CAN_BE_CALLED:
            names = [parameter.name for parameter in self.kernel.params[len(tensors) + len(self.numbers) :]]
            self._compiled[alignment] = compiled, (*self.numbers, *[self.options[name] for name in names])
