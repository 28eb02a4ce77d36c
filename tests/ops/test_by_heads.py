"""Functions of heads, a few at a time: the same results and gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from soft_vit.ops import chunked
from soft_vit.ops.chunked import by_heads


@pytest.fixture
def head_after_head(monkeypatch) -> Callable[[bool], None]:
    """Switches it on for any length, a head at a time, or off."""

    def switch(on: bool) -> None:
        monkeypatch.setattr(chunked, "MIN_TOKENS", 1 if on else 1 << 40)
        monkeypatch.setattr(chunked, "HEAD_CHUNK_BYTES", 1)

    return switch


def weighted(q: Tensor, v: Tensor, weight: Tensor, shared: Tensor) -> Tensor:
    """Some function of every head, with halves of heads as values, and weights that heads differ in."""
    return (q @ weight).sin().repeat_interleave(2, dim=1) * v * shared


@pytest.fixture
def inputs() -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    sizes = ((2, 2, 3, 2), (2, 4, 3, 1), (1, 2, 2, 1))
    tensors = [torch.randn(size, generator=g, dtype=torch.float64, requires_grad=True) for size in sizes]
    return *tensors, torch.rand(3, 1, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("group_bytes", [1, 1 << 20])
def test_gradients_once_and_twice(inputs: tuple[Tensor, ...], group_bytes: int, head_after_head, monkeypatch) -> None:
    head_after_head(True)
    monkeypatch.setattr(chunked, "HEAD_CHUNK_BYTES", group_bytes)
    attend = by_heads(weighted)
    assert torch.autograd.gradcheck(attend, inputs)
    assert torch.autograd.gradgradcheck(attend, inputs)


def test_some_inputs_need_no_gradient(inputs: tuple[Tensor, ...], head_after_head) -> None:
    head_after_head(True)
    q, v, weight, shared = inputs
    attend = by_heads(weighted)
    (found,) = torch.autograd.grad(attend(q.detach(), v, weight.detach(), shared).sum(), v)
    (expected,) = torch.autograd.grad(weighted(q, v, weight, shared).sum(), v)
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        torch.testing.assert_close(attend(*inputs), weighted(*inputs))


def test_arguments_may_have_names(inputs: tuple[Tensor, ...], head_after_head) -> None:
    head_after_head(True)
    q, v, weight, shared = inputs
    for x in (
        by_heads(weighted)(q, shared=shared, weight=weight, v=v),
        by_heads(weighted)(q, v, weight, shared=shared),
    ):
        torch.testing.assert_close(x, weighted(*inputs))


def test_backward_refuses_what_changed_since_forward(inputs: tuple[Tensor, ...], head_after_head) -> None:
    head_after_head(True)
    q, v, weight, shared = inputs
    x = by_heads(weighted)(q, v, weight, shared).sum()
    shared.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        x.backward()


def test_random_numbers_and_autocast_are_those_of_forward(head_after_head) -> None:
    head_after_head(True)
    q = torch.ones(1, 4, 8, 8, requires_grad=True)

    @by_heads
    def dropped(q: Tensor) -> Tensor:
        return torch.nn.functional.dropout(q @ (q.detach() + 1e-3), 0.5)

    with torch.autocast("cpu", torch.bfloat16):
        x = dropped(q)
    assert x.dtype == torch.bfloat16
    state = torch.get_rng_state()
    x.float().sum().backward()
    # The gradient of a token is that of its channels which were kept.
    assert torch.equal(q.grad, 2 * (x != 0).float().sum(-1, keepdim=True).expand_as(q))
    assert torch.equal(torch.get_rng_state(), state)
