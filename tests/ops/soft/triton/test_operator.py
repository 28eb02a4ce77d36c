"""The kernels as PyTorch operators: schema, fakes, gradients, compiling and exporting."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from soft_vit.ops import newton_inverse, self_gaussian_kernel, soft_attention
from soft_vit.ops.soft.triton import op


class Attention(nn.Module):
    def forward(self, q, bottleneck, v):
        return soft_attention(q, bottleneck, v, residual=v, newton_iters=2, backend="triton") + 1


class Inverse(nn.Module):
    def forward(self, a):
        return newton_inverse(a, iters=2, backend="triton") + 1


def tensors(device: str, n: int = 17, requires_grad: bool = True) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    q, v = (torch.randn(1, 2, 16, n, generator=generator).to(device).mT for _ in range(2))
    bottleneck = torch.randn(1, 2, 5, 16, generator=generator).to(device)
    return tuple(x.requires_grad_(requires_grad) for x in (q, bottleneck, v))


def matrices(device: str, n: int = 3, requires_grad: bool = True) -> tuple[torch.Tensor]:
    """Kernel matrices of n problems."""
    a = self_gaussian_kernel(torch.randn(n, 2, 5, 16, generator=torch.Generator().manual_seed(0)))
    return (a.to(device).requires_grad_(requires_grad),)


def step(backend: str, *inputs: torch.Tensor, iters: int = 20, **options) -> torch.Tensor:
    """The operator of one tensor is the inverse."""
    if len(inputs) == 3:
        return soft_attention(*inputs, newton_iters=iters, **options, backend=backend)
    return newton_inverse(*inputs, iters=iters, **options, backend=backend)


both = pytest.mark.parametrize(("module", "make"), [(Attention, tensors), (Inverse, matrices)])


def test_operator_contract(device):
    q, bottleneck, v = tensors(device)
    residual = v.detach().clone().requires_grad_()
    arguments = (q, bottleneck, v, residual, "newton", True, 2, 0.01, "rowsum", "maps", "maps")
    torch.library.opcheck(op.forward, arguments)
    a, step_size = matrices(device, n=1)[0].flatten(0, 1), torch.full((2,), 0.1, device=device)
    torch.library.opcheck(op.newton_forward, (a.detach().mT.requires_grad_(), step_size, 2, 0.01))
    torch.library.opcheck(op.newton_forward, (a, None, 2, 0.01), test_utils=("test_schema", "test_faketensor"))


def test_contract_of_the_backward(device):
    q, bottleneck, v = tensors(device, requires_grad=False)
    x, *saved = op.forward(q, bottleneck, v, None, "newton", True, 2, 0.01, "rowsum", "maps", "tokens")
    arguments = (torch.ones_like(x), q, bottleneck, v, *saved, "newton", True, "maps", "tokens")
    torch.library.opcheck(op.backward, arguments, test_utils=("test_schema", "test_faketensor"))


@both
def test_second_derivative(device, module, make):
    """By the reference."""
    inputs = make(device)

    def gradient(backend):
        (grad, *_) = torch.autograd.grad(step(backend, *inputs, iters=20).sum(), inputs, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), inputs[0])[0]

    torch.testing.assert_close(gradient("triton"), gradient("eager"))


def test_a_recorded_operator_has_no_second_derivative(device):
    inputs = tensors(device)
    with FlopCounterMode(display=False):
        x = soft_attention(*inputs, newton_iters=2, backend="triton")
        (grad, *_) = torch.autograd.grad(x.sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(grad.sum(), inputs)


@both
def test_compiles_without_a_break(device, module, make):
    inputs = make(device)
    compiled = torch.compile(module(), fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    results = []
    for function in (compiled, module()):
        x = function(*inputs)
        results.append((x, *torch.autograd.grad(x.square().sum(), inputs)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)
        assert actual.stride() == expected.stride()


@both
def test_exports_for_any_size(device, module, make):
    """Any number of tokens, and of matrices."""
    size = torch.export.Dim("size", min=2, max=1 << 20)
    dynamic = ({2: size}, None, {2: size}) if module is Attention else ({0: size},)
    exported = torch.export.export(module(), make(device, requires_grad=False), dynamic_shapes=dynamic)
    operator = torch.ops.soft_vit.soft_attention if module is Attention else torch.ops.soft_vit.newton_inverse
    assert any(node.target is operator.default for node in exported.graph.nodes)
    other = make(device, n=50, requires_grad=False)
    torch.testing.assert_close(exported.module()(*other), module()(*other))


def test_diagonal_of_the_kernel_is_exact(device):
    """Far tokens have A = I, although the rounding of their squares is a thousandth."""
    q, bottleneck, v = tensors(device, requires_grad=False)
    _, _, factor, _, _ = op.forward(q, 30 * bottleneck, v, None, "cholesky", False, 0, 0.01, "rowsum", "maps", "maps")
    torch.testing.assert_close(factor, (1.01**0.5 * torch.eye(5, device=device)).expand(2, 5, 5))


@both
@pytest.mark.parametrize("options", [{}, {"normalize": True}])
def test_counts_as_the_eager_form_does(device, module, make, options):
    options = options if module is Attention else {}
    counts = {}
    for backend in ("eager", "triton"):
        for requires_grad in (False, True):
            with FlopCounterMode(display=False) as counter:
                x = step(backend, *make(device, requires_grad=requires_grad), iters=3, **options)
                if requires_grad:
                    x.sum().backward()
            counts[backend, requires_grad] = counter.get_total_flops()
    assert counts["triton", True] == counts["eager", True] > counts["eager", False] == counts["triton", False] > 0


def test_a_counter_of_the_backward_alone_sees_the_operator(device):
    inputs = tensors(device)
    x = soft_attention(*inputs, newton_iters=2, backend="triton")
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(x.sum(), inputs)
    assert "soft_vit.soft_attention_backward" in {str(name) for name in counter.get_flop_counts()["Global"]}


def test_batches_of_gradients_are_refused(device):
    inputs = tensors(device, n=9)
    x = soft_attention(*inputs, newton_iters=2, backend="triton")
    with pytest.raises(RuntimeError):
        torch.autograd.grad(x, inputs, torch.ones(3, *x.shape, device=device), is_grads_batched=True)


@pytest.mark.parametrize("layout", ["maps", "tokens", "heads"])
def test_result_can_be_changed_in_place(device, layout):
    q, bottleneck, v = tensors(device)
    v = {"maps": v, "tokens": v.transpose(1, 2).contiguous().transpose(1, 2), "heads": v.contiguous()}[layout]
    x = soft_attention(q, bottleneck, v, newton_iters=2, backend="triton")
    assert x.stride() == v.stride()
    x += 1
    x.sum().backward()
    assert q.grad.isfinite().all()
