"""The two ways in which each image convolves its values by its own kernels."""

from contextlib import nullcontext

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from soft_vit.layers.attention.inline import convolve_each_image


@pytest.mark.parametrize(("size", "sequence"), [((7, 9), False), ((1, 1), False), ((11, 1), True)])
def test_captured_convolution_equals_the_eager_one(size: tuple[int, int], sequence: bool) -> None:
    """A graph, like a counter of operations, gets sums of shifted maps."""
    maps = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    kernels = torch.randn(2, 3, 3 if sequence else 9, dtype=torch.float64, requires_grad=True)
    results = []
    for mode in (nullcontext(), FlopCounterMode(display=False)):
        with mode:
            y = convolve_each_image(maps, kernels, sequence)
        results.append([y, *torch.autograd.grad(y.square().sum(), (maps, kernels))])
    for eager, captured in zip(*results, strict=True):
        torch.testing.assert_close(captured, eager, rtol=1e-12, atol=1e-12)
