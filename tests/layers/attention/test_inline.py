"""The two ways in which each image convolves its values by its own kernels, and what the kernels are made of."""

import pytest
import torch

from soft_vit.layers.attention import inline


@pytest.mark.parametrize("large", [1 << 17, 0], ids=["at once", "image by image"])
@pytest.mark.parametrize(("size", "sequence"), [((7, 9), False), ((1, 1), False), ((11, 1), True)])
def test_captured_convolution_equals_the_eager_one(size: tuple[int, int], sequence: bool, large, monkeypatch) -> None:
    """A graph gets sums of shifted maps."""
    monkeypatch.setattr(inline, "LARGE_MAP", large)
    maps = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    kernels = torch.randn(2, 3, 3 if sequence else 9, dtype=torch.float64, requires_grad=True)
    results = []
    for captured in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda captured=captured: captured)
        y = inline.convolve_each_image(maps, kernels, sequence)
        results.append([y, *torch.autograd.grad(y.square().sum(), (maps, kernels))])
    for eager, captured in zip(*results, strict=True):
        torch.testing.assert_close(captured, eager, rtol=1e-12, atol=1e-12)


def test_a_mean_that_fp16_holds_needs_no_sum_that_it_does_not() -> None:
    """The sum and the number of these tokens are beyond its 65504."""
    x = torch.full((1, 70000, 2), 4.0, dtype=torch.float16)
    for mask in (None, torch.ones(1, 70000, dtype=torch.bool)):
        assert torch.equal(inline.mean_token(x, mask), torch.full((1, 2), 4.0, dtype=torch.float16))
