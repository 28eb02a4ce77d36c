"""Attentions by tokens: the same results and gradients, and no more memory than softmax attention."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from soft_vit.analysis.atlas.measure import build_attention, training_step
from soft_vit.analysis.memory import step_memory
from soft_vit.layers import ATTENTIONS
from soft_vit.ops import by_heads, by_tokens
from soft_vit.ops.by_tokens import map_tokens, max_over_tokens, sum_over_tokens

GRID = (7, 9)
# All whose attention is computed by tokens.
KINDS = ["linear", "cosformer", "performer", "focused", "polaformer", "rala", "mala", "mila", "ttt", "skyformer"]
# Of them, those that take a mask.
MASKED = ["linear", "cosformer", "performer", "focused", "rala", "mala", "mila", "ttt"]


@pytest.fixture
def token_after_token(monkeypatch) -> Callable[[bool], None]:
    """Switches it on for any length, two tokens of width 24 of two images at a time, or off."""

    def switch(on: bool) -> None:
        monkeypatch.setattr(by_heads, "LEAST_TOKENS", 1 if on else 1 << 40)
        monkeypatch.setattr(by_tokens, "CHUNK_BYTES", 2 * 2 * 24 * 8)

    return switch


@pytest.mark.parametrize(
    ("kind", "prefix", "masked"),
    [(kind, 0, False) for kind in KINDS] + [(kind, 2, True) for kind in MASKED],
)
def test_results_and_gradients_are_those_of_all_tokens_at_once(
    kind: str, prefix: int, masked: bool, token_after_token
) -> None:
    torch.manual_seed(0)
    attn = ATTENTIONS[kind](24, 3, feat_size=GRID, sr_ratio=2).double().eval()
    for parameter in attn.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, prefix + 63, 24, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(prefix + 63) < torch.tensor([[prefix + 63], [41]]) if masked else None
    found = []
    for on in (True, False):
        token_after_token(on)
        y = attn(x, GRID, prefix, mask)
        y = y if mask is None else y.masked_fill(~mask[..., None], 0)
        grads = torch.autograd.grad(y.square().sum(), [x, *attn.parameters()], create_graph=True)
        twice = torch.autograd.grad(grads[0].square().sum(), x)
        y = attn(x, GRID, prefix, mask)
        y = y if mask is None else y.masked_fill(~mask[..., None], 0)
        found.append([y, *grads, *twice, *torch.autograd.grad(y.square().sum(), [x, *attn.parameters()])])
    for by_chunks, at_once in zip(*found, strict=True):
        # The order of sums differs: a few units in the last place for each of 65 tokens, twice differentiated.
        assert (by_chunks - at_once).norm() <= 1e-11 * at_once.norm()


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


@pytest.mark.parametrize("chunk_bytes", [1, 2 * 2 * 3 * 4 * 8, 1 << 20])
def test_gradients_once_twice_and_many_at_a_time(
    inputs: tuple[Tensor, ...], chunk_bytes: int, token_after_token, monkeypatch
) -> None:
    token_after_token(True)
    monkeypatch.setattr(by_tokens, "CHUNK_BYTES", chunk_bytes)
    assert torch.autograd.gradcheck(attend, inputs, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(attend, inputs)


def test_some_inputs_need_no_gradient(inputs: tuple[Tensor, ...], token_after_token) -> None:
    q, v, weight = inputs
    found = []
    for on in (True, False):
        token_after_token(on)
        found.append(torch.autograd.grad(attend(q, v.detach(), weight.detach()).sum(), q)[0])
        with torch.no_grad():
            found.append(attend(*inputs))
    torch.testing.assert_close(found[:2], found[2:])


def test_the_largest_over_tokens(inputs: tuple[Tensor, ...], token_after_token) -> None:
    token_after_token(True)
    q, _, weight = inputs
    largest = max_over_tokens(torch.matmul, (q,), (weight,))
    assert torch.equal(largest, (q @ weight).amax(2, keepdim=True))
    assert not largest.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_training_needs_little_more_memory_than_softmax_attention(kind: str) -> None:
    side, width = 112, 64
    x, step = (1, side**2, width), partial(training_step, feat_size=(side, side))
    softmax, other = (
        step_memory(partial(build_attention, name, side, 32), x, "cpu", step) for name in ("softmax", kind)
    )
    # Besides tokens and projections, ttt's convolution keeps maps.
    assert other <= (1.7 if kind == "ttt" else 1.5) * softmax
