"""The kernels as PyTorch operators: schema, fakes, gradients, compiling and exporting."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from soft_vit.ops import newton_inverse, self_gaussian_kernel, soft_attention
from soft_vit.ops.soft.triton import op


def tensors(device: str, n: int = 17, requires_grad: bool = True) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    q, v = (torch.randn(1, 2, 16, n, generator=generator).to(device).mT for _ in range(2))
    bottleneck = torch.randn(1, 2, 5, 16, generator=generator).to(device)
    return tuple(x.requires_grad_(requires_grad) for x in (q, bottleneck, v))


def test_operator_contract(device):
    q, bottleneck, v = tensors(device)
    residual = v.detach().clone().requires_grad_()
    arguments = (q, bottleneck, v, residual, "newton", True, 2, 0.01, "rowsum", "maps", "maps")
    torch.library.opcheck(op.forward, arguments)


def test_contract_of_the_backward(device):
    q, bottleneck, v = tensors(device, requires_grad=False)
    x, *saved = op.forward(q, bottleneck, v, None, "newton", True, 2, 0.01, "rowsum", "maps", "tokens")
    arguments = (torch.ones_like(x), q, bottleneck, v, *saved, "newton", True, "maps", "tokens")
    torch.library.opcheck(op.backward, arguments, test_utils=("test_schema", "test_faketensor"))


def test_second_derivative(device):
    """By the reference, and refused where an operator was recorded."""
    q, bottleneck, v = tensors(device)

    def gradient(backend):
        x = soft_attention(q, bottleneck, v, iters=20, backend=backend)
        return torch.autograd.grad(x.sum(), q, create_graph=True)[0]

    results = [torch.autograd.grad(gradient(backend).square().sum(), q)[0] for backend in ("triton", "eager")]
    torch.testing.assert_close(*results)
    with FlopCounterMode(display=False):
        recorded = gradient("triton")
    with pytest.raises(RuntimeError):
        torch.autograd.grad(recorded.sum(), q)


class Fused(nn.Module):
    def forward(self, q, bottleneck, v):
        return soft_attention(q, bottleneck, v, residual=v, iters=2, backend="triton") + 1


def test_compiles_without_a_break(device):
    inputs = tensors(device)
    compiled = torch.compile(Fused(), fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    results = []
    for function in (compiled, Fused()):
        x = function(*inputs)
        results.append((x, *torch.autograd.grad(x.square().sum(), inputs)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)
        assert actual.stride() == expected.stride()


def test_exports_with_any_number_of_tokens(device):
    tokens = torch.export.Dim("tokens", min=2, max=1 << 20)
    inputs = tensors(device, requires_grad=False)
    exported = torch.export.export(Fused(), inputs, dynamic_shapes=({2: tokens}, None, {2: tokens}))
    assert any(node.target is torch.ops.soft_vit.soft_attention.default for node in exported.graph.nodes)
    other = tensors(device, n=50, requires_grad=False)
    torch.testing.assert_close(exported.module()(*other), Fused()(*other))


def test_diagonal_of_the_kernel_is_exact(device):
    """Far tokens have A = I, although the rounding of their squares is a thousandth."""
    q, bottleneck, v = tensors(device, requires_grad=False)
    _, _, factor, _, _ = op.forward(q, 30 * bottleneck, v, None, "cholesky", False, 0, 0.01, "rowsum", "maps", "maps")
    torch.testing.assert_close(factor, (1.01**0.5 * torch.eye(5, device=device)).expand(2, 5, 5))


def counted(function, arguments) -> int:
    with FlopCounterMode(display=False) as counter:
        function(*arguments)
    return counter.get_total_flops()


@pytest.mark.parametrize("normalize", [False, True])
def test_counts_as_the_eager_form_does(device, normalize):
    forward, both = {}, {}
    for backend in ("eager", "triton"):

        def attend(*inputs, backend=backend):
            return soft_attention(*inputs, normalize=normalize, iters=3, backend=backend)

        forward[backend] = counted(attend, tensors(device, requires_grad=False))
        both[backend] = counted(lambda *inputs: attend(*inputs).sum().backward(), tensors(device))
    assert forward["triton"] == forward["eager"] > 0
    assert both["triton"] == both["eager"] > forward["eager"]


def test_newtons_inverse_counts_as_the_eager_form_does(device):
    def step(a, backend):
        newton_inverse(a, 3, backend=backend).sum().backward()

    a = self_gaussian_kernel(torch.randn(4, 9, 16)).to(device)
    counts = {backend: counted(step, (a.clone().requires_grad_(), backend)) for backend in ("eager", "triton")}
    assert counts["triton"] == counts["eager"] > 0


def test_who_watches_the_backward_alone_sees_the_operator(device):
    inputs = tensors(device)
    x = soft_attention(*inputs, iters=2, backend="triton")
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(x.sum(), inputs)
    assert "soft_vit.soft_attention_backward" in {str(name) for name in counter.get_flop_counts()["Global"]}


def test_batches_of_gradients_are_refused(device):
    inputs = tensors(device, n=9)
    x = soft_attention(*inputs, iters=2, backend="triton")
    with pytest.raises(RuntimeError):
        torch.autograd.grad(x, inputs, torch.ones(3, *x.shape, device=device), is_grads_batched=True)


@pytest.mark.parametrize("layout", ["maps", "tokens", "heads"])
def test_result_can_be_changed_in_place(device, layout):
    q, bottleneck, v = tensors(device)
    v = {"maps": v, "tokens": v.transpose(1, 2).contiguous().transpose(1, 2), "heads": v.contiguous()}[layout]
    x = soft_attention(q, bottleneck, v, iters=2, backend="triton")
    assert x.stride() == v.stride()
    x += 1
    x.sum().backward()
    assert q.grad.isfinite().all()
