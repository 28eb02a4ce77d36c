"""What the interpreter cannot show: Newton's iteration in three products of fp16 terms, as tensor cores do them."""

import pytest
import torch

from soft_vit.ops.gaussian import self_gaussian_kernel
from soft_vit.ops.soft.newton import newton_iterate, newton_step_size
from soft_vit.ops.soft.options import add_ridge


def truncated(x: torch.Tensor) -> torch.Tensor:
    """Round float64 to fp32 towards zero, as the accumulators of tensor cores do."""
    nearest = x.float()
    return torch.where(nearest.double().abs() > x.abs(), torch.nextafter(nearest, torch.zeros_like(nearest)), nearest)


def three_products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of scaled fp32 matrices from two fp16 terms each, without that of the small terms; 16 columns at a
    time."""
    scales = [2.0 ** (13 - x.abs().amax((-2, -1), keepdim=True).log2().floor()) for x in (a, b)]
    a, b = a * scales[0], b * scales[1]
    a_0, b_0 = a.half().float(), b.half().float()
    a_1, b_1 = (a - a_0).half().float(), (b - b_0).half().float()
    total = torch.zeros(*a.shape[:-1], b.shape[-1])
    for left, right in ((a_1, b_0), (a_0, b_1), (a_0, b_0)):
        for k in range(0, a.shape[-1], 16):
            total = truncated(total.double() + left[..., k : k + 16].double() @ right[..., k : k + 16, :].double())
    return total / (scales[0] * scales[1])


@pytest.mark.parametrize("m", [33, 49])
@pytest.mark.parametrize(("start", "ridge"), [("rowsum", 0.01), ("guarded_image", 0.0)])
@pytest.mark.parametrize("spread", [1.0, 0.3, 0.1, 0.01])
def test_newton_on_tensor_cores(m, start, ridge, spread):
    """At most twice the error of fp32 products, or 16 roundings; spread 0.01 is a flat kernel."""
    tokens = torch.randn(8, m, 32) * spread
    exact_a, a = self_gaussian_kernel(tokens.double()), self_gaussian_kernel(tokens)
    exact_p, p = add_ridge(exact_a, ridge), add_ridge(a, ridge)
    exact = newton_iterate(exact_p, newton_step_size(exact_a, ridge, start) * exact_p, 20)
    first = newton_step_size(a, ridge, start) * p
    inverse = first
    for _ in range(20):
        inverse = 2 * inverse - three_products(three_products(inverse, p), inverse)
    errors = [((w.double() - exact).norm() / exact.norm()).item() for w in (inverse, newton_iterate(p, first, 20))]
    assert errors[0] <= 2 * errors[1] + 16 * torch.finfo(torch.float32).eps
