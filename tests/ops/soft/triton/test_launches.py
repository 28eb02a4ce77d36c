"""Tests that need a GPU: CUDA graphs, streams, several devices, tensors of more than 2^31 elements."""

import pytest
import torch

from soft_vit.ops import soft_attention
from soft_vit.ops.soft.triton.support import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter has neither streams nor graphs")


def attend(*inputs: torch.Tensor) -> torch.Tensor:
    return soft_attention(*inputs, normalize=True, backend="triton")


def tensors(device: str, n: int = 500, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """q, bottleneck tokens and v."""
    inputs = [torch.randn(2, 3, rows, 32, device=device, dtype=dtype) for rows in (n, 49, n)]
    return [(0.5 * x).requires_grad_() for x in inputs]


def result_and_gradients(function, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    x = function(*inputs)
    return [x.detach(), *torch.autograd.grad(x.float().square().sum(), inputs)]


def assert_same_bits(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for name, one, other in zip(("x", "dq", "dbottleneck", "dv"), actual, expected, strict=True):
        assert torch.equal(one, other), name


def test_cuda_graph_of_both_passes(device):
    graphed = torch.cuda.make_graphed_callables(attend, tuple(tensors(device)))
    inputs = tensors(device)
    assert_same_bits(result_and_gradients(graphed, inputs), result_and_gradients(attend, inputs))


def test_another_stream(device):
    inputs = tensors(device)
    expected = result_and_gradients(attend, inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Launches in another stream would read these before they are written.
        late = [torch.zeros_like(x) for x in inputs]
        torch.cuda._sleep(20_000_000)
        for x, value in zip(late, inputs, strict=True):
            x.copy_(value.detach())
        actual = result_and_gradients(attend, [x.requires_grad_() for x in late])
    stream.synchronize()
    assert_same_bits(actual, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_current(device):
    inputs = tensors(device)
    others = [x.detach().to(f"{device}:1").requires_grad_() for x in inputs]
    expected = result_and_gradients(attend, inputs)
    for _ in range(2):
        assert_same_bits([x.to(f"{device}:0") for x in result_and_gradients(attend, others)], expected)


@pytest.mark.parametrize("layout", ["heads", "maps"])
def test_more_than_2_31_elements(device, layout):
    """The last of 64 heads lies behind element 2^31; alone, in other chunks, it gives nearly the same."""
    n = 2**31 // (64 * 64) + 4200
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("needs 40 GiB of free memory")
    shape = (1, 64, n, 64) if layout == "heads" else (1, 64, 64, n)
    q, v, grad = (torch.empty(shape, device=device, dtype=torch.bfloat16).normal_(std=0.35) for _ in range(3))
    if layout == "maps":
        q, v, grad = q.mT, v.mT, grad.mT
    bottleneck = torch.randn(1, 64, 9, 64, device=device) * 0.35

    def last(heads: slice) -> list[torch.Tensor]:
        inputs = [x[:, heads].detach().requires_grad_() for x in (q, bottleneck, v)]
        x = attend(*inputs)
        return [y[:, -1].clone() for y in (x.detach(), *torch.autograd.grad(x, inputs, grad[:, heads]))]

    for behind, alone in zip(last(slice(None)), last(slice(63, None)), strict=True):
        assert (behind.float() - alone.float()).norm() < 4e-3 * alone.float().norm()
