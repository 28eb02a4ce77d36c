"""Functions computed in parts: the same results and gradients as at once; tests/benchmarks/atlas measures memory."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from soft_vit.layers import ATTENTIONS
from soft_vit.ops import bigbird, chunked, windows
from soft_vit.ops.chunked import by_heads, map_tokens, max_over_tokens, sum_over_tokens

# Three rows of tiles, and nine blocks of tokens.
GRID = (17, 5)
BY_TOKENS = ["linear", "cosformer", "performer", "focused", "polaformer", "rala", "mala", "mila", "skyformer", "gau"]
BY_TOKENS += ["vssd", "hedgehog"]
BY_HEADS = ["inline", "vq", "nystrom", "agent", "atrous", "reformer"]
KINDS = [*BY_TOKENS, *BY_HEADS, "ttt", "ttt_glu", "local", "longformer", "bigbird"]
# Attention types whose fused kernels cannot be differentiated twice.
ONCE = {"nystrom", "agent", "local", "atrous", "longformer", "bigbird"}


@pytest.fixture
def part_after_part(monkeypatch) -> Callable[[bool], None]:
    """Return a function that switches computing in parts on, with the smallest parts and for any length, or off."""

    def switch(on: bool) -> None:
        monkeypatch.setattr(chunked, "MIN_TOKENS", 1 if on else 1 << 40)

    monkeypatch.setattr(chunked, "HEAD_CHUNK_BYTES", 1)
    monkeypatch.setattr(chunked, "TOKEN_CHUNK_BYTES", 2 * 10 * 24 * 8)
    monkeypatch.setattr(windows, "CHUNK_BYTES", 1)
    monkeypatch.setattr(bigbird, "NUM_PARTS", 100)
    return switch


CALLS = [(kind, 0, False) for kind in KINDS]
CALLS += [(kind, 2, True) for kind in KINDS if ATTENTIONS[kind].traits.mask_refusal is None]


@pytest.mark.parametrize(("kind", "prefix", "masked"), CALLS)
def test_results_and_gradients_are_those_of_all_at_once(
    kind: str, prefix: int, masked: bool, part_after_part: Callable[[bool], None]
) -> None:
    torch.manual_seed(0)
    attn = ATTENTIONS[kind](24, 3, feat_size=GRID, sr_ratio=2).double().eval()
    for parameter in attn.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    length = prefix + GRID[0] * GRID[1]
    x = torch.randn(2, length, 24, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(length) < torch.tensor([[length], [41]]) if masked else None

    def run(create_graph: bool) -> list[Tensor]:
        y = attn(x, GRID, prefix, mask)
        y = y if mask is None else y.masked_fill(~mask[..., None], 0)
        grads = torch.autograd.grad(y.square().sum(), [x, *attn.parameters()], create_graph=create_graph)
        return [y, *grads, *(torch.autograd.grad(grads[0].square().sum(), x) if create_graph else ())]

    found = []
    for on in (True, False):
        part_after_part(on)
        found.append(run(create_graph=False))
        # A mask only zeroes what parts read.
        if kind not in ONCE and not masked:
            found[-1] += run(create_graph=True)
    for in_turn, at_once in zip(*found, strict=True):
        # The order of sums differs: a few units in the last place for each of 87 tokens, twice differentiated.
        assert (in_turn - at_once).norm() <= 1e-11 * at_once.norm()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "ttt", "local", "bigbird"])
def test_a_compiler_sees_one_graph_without_parts(kind: str, part_after_part: Callable[[bool], None]) -> None:
    part_after_part(True)
    attn = ATTENTIONS[kind](24, 3, feat_size=GRID, sr_ratio=2).double().eval()
    x = torch.randn(2, GRID[0] * GRID[1], 24, dtype=torch.float64)
    torch._dynamo.reset()
    compiled = torch.compile(attn, backend="eager", fullgraph=True)(x, GRID)
    # In parts, sums have another order.
    torch.testing.assert_close(compiled, attn(x, GRID), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["performer", "reformer"])
def test_backward_refuses_directions_that_were_redrawn(kind: str, part_after_part: Callable[[bool], None]) -> None:
    part_after_part(True)
    attn = ATTENTIONS[kind](24, 3, feat_size=GRID, sr_ratio=2)
    loss = attn(torch.randn(2, GRID[0] * GRID[1], 24), GRID).sum()
    attn.redraw()
    with pytest.raises(RuntimeError):
        loss.backward()


def attend_heads(q: Tensor, v: Tensor, weight: Tensor, shared: Tensor) -> Tensor:
    """A function of each head, with values of half the width and twice the heads, and weights of each head."""
    return (q @ weight).sin().repeat_interleave(2, dim=1) * v * shared


def attend_tokens(q: Tensor, v: Tensor, weight: Tensor, shared: Tensor) -> Tensor:
    """A state and results read from it, with a table of tokens without a gradient, and without a mask."""
    table = torch.linspace(0, 1, 5, dtype=q.dtype)[None, None, :, None]
    state, total = sum_over_tokens(
        lambda q, v, mask, table, weight: ((q * table).mT @ v * weight, v.sum(2, keepdim=True)),
        (q, v, None, table),
        (weight,),
    )
    return map_tokens(lambda q, table, state, total: (q + table).sin() @ state * total, (q, table), (state, total))


def attend_tokens_in_one(q: Tensor, v: Tensor, weight: Tensor, shared: Tensor) -> Tensor:
    """The same in one call: both functions read v, only one reads q, and the mask is unused."""
    return map_tokens(
        lambda q, v, mask, weight, state, total: (q @ weight).sin() @ state * v + total,
        (q, v, None),
        (weight,),
        sums=lambda q, v, mask, weight: (v.mT @ v.cos() * weight.mean(), v.sum(2, keepdim=True)),
    )


def small_inputs(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    """q, v, weight and a tensor without a gradient."""
    g = torch.Generator().manual_seed(0)
    of_heads = function is attend_heads
    sizes = ((2, 2, 3, 2), (2, 4, 3, 1), (1, 2, 2, 1)) if of_heads else ((1, 1, 5, 3), (1, 1, 5, 2), (1, 1, 3, 2))
    tensors = [torch.randn(size, generator=g, dtype=torch.float64, requires_grad=True) for size in sizes]
    return *tensors, torch.rand(3, 1, generator=g, dtype=torch.float64)


functions = pytest.mark.parametrize("function", [attend_heads, attend_tokens, attend_tokens_in_one])


def in_turn(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return by_heads(function) if function is attend_heads else function


@functions
@pytest.mark.parametrize("chunk_bytes", [1, pytest.param(2 * 2 * 3 * 8, marks=pytest.mark.slow)])
def test_gradients_once_and_twice(
    function: Callable[..., Tensor], chunk_bytes: int, part_after_part: Callable[[bool], None], monkeypatch
) -> None:
    part_after_part(True)
    for name in ("HEAD_CHUNK_BYTES", "TOKEN_CHUNK_BYTES"):
        monkeypatch.setattr(chunked, name, chunk_bytes)
    assert torch.autograd.gradcheck(in_turn(function), small_inputs(function))
    assert torch.autograd.gradgradcheck(in_turn(function), small_inputs(function))


@functions
def test_some_inputs_need_no_gradient(function: Callable[..., Tensor], part_after_part: Callable[[bool], None]) -> None:
    q, v, weight, shared = small_inputs(function)
    found = []
    for on in (True, False):
        part_after_part(on)
        attend = in_turn(function)
        found += torch.autograd.grad(attend(q, v.detach(), weight=weight.detach(), shared=shared).sum(), q)
        with torch.no_grad():
            found.append(attend(q, v, weight, shared))
    torch.testing.assert_close(found[:2], found[2:])


def test_random_numbers_and_autocast_are_those_of_forward(part_after_part: Callable[[bool], None]) -> None:
    part_after_part(True)
    q = torch.ones(1, 4, 8, 8, requires_grad=True)

    @by_heads
    def dropped(q: Tensor) -> Tensor:
        return torch.nn.functional.dropout(q @ (q.detach() + 1e-3), 0.5)

    with torch.autocast("cpu", torch.bfloat16):
        x = dropped(q)
    assert x.dtype == torch.bfloat16
    state = torch.get_rng_state()
    x.float().sum().backward()
    # Dropped channels do not contribute to the gradient of a token.
    assert torch.equal(q.grad, 2 * (x != 0).float().sum(-1, keepdim=True).expand_as(q))
    assert torch.equal(torch.get_rng_state(), state)


def test_shared_tensors_have_exact_gradients_in_half_precision(
    part_after_part: Callable[[bool], None], monkeypatch
) -> None:
    part_after_part(True)
    monkeypatch.setattr(chunked, "TOKEN_CHUNK_BYTES", 1)
    tokens = torch.ones(2, 3, 500, 4, dtype=torch.bfloat16)
    weight = torch.ones(1, 3, 1, 4, dtype=torch.bfloat16, requires_grad=True)
    map_tokens(torch.mul, (tokens,), (weight,)).sum().backward()
    # A sum of twos in bf16 stops growing at 512.
    assert torch.equal(weight.grad, torch.full_like(weight, 1000))


def test_the_largest_over_tokens(part_after_part: Callable[[bool], None], monkeypatch) -> None:
    part_after_part(True)
    monkeypatch.setattr(chunked, "TOKEN_CHUNK_BYTES", 1)
    q, _, weight, _ = small_inputs(attend_tokens)
    largest = max_over_tokens(torch.matmul, (q,), (weight,))
    assert torch.equal(largest, (q @ weight).amax(2, keepdim=True))
    assert not largest.requires_grad
