"""Sums and functions of tokens, a few at a time: the same results and gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from soft_vit.ops import chunked
from soft_vit.ops.chunked import map_tokens, max_over_tokens, sum_over_tokens


@pytest.fixture
def token_after_token(monkeypatch) -> Callable[[bool], None]:
    """Switches it on for any length, two tokens of width 24 of two images at a time, or off."""

    def switch(on: bool) -> None:
        monkeypatch.setattr(chunked, "MIN_TOKENS", 1 if on else 1 << 40)
        monkeypatch.setattr(chunked, "TOKEN_CHUNK_BYTES", 2 * 2 * 24 * 8)

    return switch


@pytest.fixture
def inputs() -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    sizes = ((2, 3, 5, 4), (2, 3, 5, 2), (1, 3, 4, 2))
    return tuple(torch.randn(size, generator=g, dtype=torch.float64, requires_grad=True) for size in sizes)


def attend(q: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    """Some state, and what is read from it; a table of tokens that needs no gradient, and none of a mask."""
    table = torch.linspace(0, 1, 5, dtype=q.dtype)[None, None, :, None]
    state, total = sum_over_tokens(
        lambda q, v, mask, table, weight: ((q * table).mT @ v * weight, v.sum(2, keepdim=True)),
        (q, v, None, table),
        (weight,),
    )
    return map_tokens(lambda q, table, state, total: (q + table).sin() @ state * total, (q, table), (state, total))


def attend_in_one(q: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    """Both in one call: v is read by either, q by one, and the mask by none."""
    return map_tokens(
        lambda q, v, mask, weight, state, total: (q @ weight).sin() @ state * v + total,
        (q, v, None),
        (weight,),
        sums=lambda q, v, mask, weight: (v.mT @ v.cos() * weight.mean(), v.sum(2, keepdim=True)),
    )


both = pytest.mark.parametrize("function", [attend, attend_in_one])


@both
@pytest.mark.parametrize("chunk_bytes", [1, 2 * 2 * 3 * 8, 1 << 20])
def test_gradients_once_and_twice(
    function: Callable[..., Tensor], chunk_bytes: int, inputs: tuple[Tensor, ...], token_after_token, monkeypatch
) -> None:
    """With a head of three channels, as every number costs a pass."""
    token_after_token(True)
    q, v, weight = inputs
    inputs = tuple(x.detach().requires_grad_() for x in (q[:, :1, :, :3], v[:, :1], weight[:, :1, :3]))
    monkeypatch.setattr(chunked, "TOKEN_CHUNK_BYTES", chunk_bytes)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@both
def test_some_inputs_need_no_gradient(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], token_after_token
) -> None:
    q, v, weight = inputs
    found = []
    for on in (True, False):
        token_after_token(on)
        found.append(torch.autograd.grad(function(q, v.detach(), weight.detach()).sum(), q)[0])
        with torch.no_grad():
            found.append(function(*inputs))
    torch.testing.assert_close(found[:2], found[2:])


def test_shared_tensors_have_exact_gradients_in_half_precision(token_after_token, monkeypatch) -> None:
    token_after_token(True)
    monkeypatch.setattr(chunked, "TOKEN_CHUNK_BYTES", 1)
    tokens = torch.ones(2, 3, 500, 4, dtype=torch.bfloat16)
    weight = torch.ones(1, 3, 1, 4, dtype=torch.bfloat16, requires_grad=True)
    map_tokens(torch.mul, (tokens,), (weight,)).sum().backward()
    # Twos added to one another in bf16 end at 512.
    assert torch.equal(weight.grad, torch.full_like(weight, 1000))


def test_the_largest_over_tokens(inputs: tuple[Tensor, ...], token_after_token) -> None:
    token_after_token(True)
    q, _, weight = inputs
    largest = max_over_tokens(torch.matmul, (q,), (weight,))
    assert torch.equal(largest, (q @ weight).amax(2, keepdim=True))
    assert not largest.requires_grad
