"""Operations that take another form on a CPU without gradients."""

import pytest
import torch
import torch.nn.functional as F

from soft_vit.ops.cpu import softplus

INF = float("inf")


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_softplus(dtype, grad):
    x = torch.cat([torch.linspace(-80, 80, 9973), torch.tensor([-1e30, -INF, 0.0, 20.0, 1e30, INF])]).to(dtype)
    expected = F.softplus(x.double(), threshold=100)
    with torch.set_grad_enabled(grad):
        y = softplus(x)
    assert y.dtype == dtype
    # A few roundings, and the least normal number.
    limits = torch.finfo(dtype)
    torch.testing.assert_close(y.double(), expected, rtol=4 * limits.eps, atol=limits.tiny)
    assert softplus(x.new_tensor([float("nan")])).isnan()
