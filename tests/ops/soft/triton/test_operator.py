"""The kernels as PyTorch operators: schema, fakes, gradients, compiling and exporting."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from soft_vit.ops import soft_attention
from soft_vit.ops.soft.triton import op


class Attention(nn.Module):
    def forward(self, q, bottleneck, v):
        return soft_attention(q, bottleneck, v, residual=v, newton_iters=2, backend="triton") + 1


def tensors(device: str, n: int = 17, requires_grad: bool = True) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    q, v = (torch.randn(1, 2, 16, n, generator=generator).to(device).mT for _ in range(2))
    bottleneck = torch.randn(1, 2, 5, 16, generator=generator).to(device)
    return tuple(x.requires_grad_(requires_grad) for x in (q, bottleneck, v))


CHECKS = [
    ("test_schema", "test_autograd_registration", "test_faketensor"),
    pytest.param("test_aot_dispatch_dynamic", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("checks", CHECKS, ids=str)
def test_operator_contract(device, checks):
    q, bottleneck, v = tensors(device)
    residual = v.detach().clone().requires_grad_()
    arguments = (q, bottleneck, v, residual, "newton", True, 2, 0.01, "rowsum", "maps", "maps")
    torch.library.opcheck(op.forward, arguments, test_utils=checks)


def test_contract_of_the_backward(device):
    q, bottleneck, v = tensors(device, requires_grad=False)
    x, *saved = op.forward(q, bottleneck, v, None, "newton", True, 2, 0.01, "rowsum", "maps", "tokens")
    arguments = (torch.ones_like(x), q, bottleneck, v, *saved, "newton", True, "maps", "tokens")
    torch.library.opcheck(op.backward, arguments, test_utils=("test_schema", "test_faketensor"))


def test_second_derivative(device):
    """Computed by the reference."""
    inputs = tensors(device)

    def gradient(backend):
        (grad, *_) = torch.autograd.grad(soft_attention(*inputs, backend=backend).sum(), inputs, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), inputs[0])[0]

    torch.testing.assert_close(gradient("triton"), gradient("eager"))


def test_a_recorded_operator_has_no_second_derivative(device):
    inputs = tensors(device)
    with FlopCounterMode(display=False):
        x = soft_attention(*inputs, newton_iters=2, backend="triton")
        (grad, *_) = torch.autograd.grad(x.sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(grad.sum(), inputs)


@pytest.mark.slow
def test_compiles_without_a_break(device):
    inputs = tensors(device)
    compiled = torch.compile(Attention(), fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    results = []
    for function in (compiled, Attention()):
        x = function(*inputs)
        results.append((x, *torch.autograd.grad(x.square().sum(), inputs)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)
        assert actual.stride() == expected.stride()


@pytest.mark.slow
def test_exports_for_any_number_of_tokens(device):
    size = torch.export.Dim("size", min=2, max=1 << 20)
    dynamic = ({2: size}, None, {2: size})
    exported = torch.export.export(Attention(), tensors(device, requires_grad=False), dynamic_shapes=dynamic)
    assert any(node.target is torch.ops.soft_vit.soft_attention.default for node in exported.graph.nodes)
    other = tensors(device, n=50, requires_grad=False)
    torch.testing.assert_close(exported.module()(*other), Attention()(*other))


def test_diagonal_of_the_kernel_is_exact(device):
    """Far tokens have A = I, although the rounding of their squares is a thousandth."""
    q, bottleneck, v = tensors(device, requires_grad=False)
    _, _, factor, _, _ = op.forward(q, 30 * bottleneck, v, None, "cholesky", False, 0, 0.01, "rowsum", "maps", "maps")
    torch.testing.assert_close(factor, (1.01**0.5 * torch.eye(5, device=device)).expand(2, 5, 5))


@pytest.mark.slow
def test_counts_as_the_eager_form_does(device):
    """Also where only the backward is counted."""
    counts = {}
    for backend in ("eager", "triton"):
        inputs = tensors(device)
        for counted in (1, 2):
            with FlopCounterMode(display=False) as counter:
                x = soft_attention(*inputs, newton_iters=3, backend=backend)
                if counted == 2:
                    x.sum().backward()
            counts[backend, counted] = counter.get_total_flops()
    assert counts["triton", 2] == counts["eager", 2] > counts["eager", 1] == counts["triton", 1] > 0
    x = soft_attention(*inputs, newton_iters=3, backend="triton")
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(x.sum(), inputs)
    assert counter.get_total_flops() == counts["eager", 2] - counts["eager", 1]
