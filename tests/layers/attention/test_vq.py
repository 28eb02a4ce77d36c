"""Transformer-VQ against dense attention to its quantised keys, and how its codes follow the keys."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from soft_vit.layers.attention import VQAttention

DIM, HEADS, CODES, GRID = 12, 3, 5, (5, 7)
CODE_STATE = ("codebook", "key_count", "key_sum")


def make(**options: float) -> VQAttention:
    torch.manual_seed(0)
    options = {"num_codes": CODES, **options}
    return VQAttention(DIM, HEADS, feat_size=GRID, **options, dtype=torch.float64)


def tokens(seed: int = 1) -> Tensor:
    return torch.randn(2, 35, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def keys(attn: VQAttention, x: Tensor) -> Tensor:
    """`[B, H, N, D]`."""
    return attn.qkv(x).chunk(3, dim=-1)[1].unflatten(2, (HEADS, -1)).transpose(1, 2)


def nearest(k: Tensor, codebook: Tensor) -> Tensor:
    """The number of the code `[H, S, D]` nearest to each key `[B, H, N, D]`: `[B, H, N]`."""
    return (k[..., None, :] - codebook[:, None]).square().sum(-1).argmin(-1)


def code_state(attn: VQAttention) -> list[Tensor]:
    return [getattr(attn, name).clone() for name in CODE_STATE]


def test_a_step_of_training_makes_averages_of_keys_the_codes_of_the_next() -> None:
    attn, x = make(decay=0.5).train(), tokens()
    attn(x, GRID)
    _, count, total = state = code_state(attn)
    attn.eval()(x, GRID)
    assert all(map(torch.equal, code_state(attn), state))
    attn.train()(x, GRID)
    codebook, k = attn.codebook, keys(attn, x)
    # Codes without keys began again at a key.
    torch.testing.assert_close(codebook, total / count[..., None])
    chosen = F.one_hot(nearest(k, codebook), CODES).to(x.dtype)
    count, total = 0.5 * count + 0.5 * chosen.sum((0, 2)), 0.5 * total + 0.5 * (chosen.mT @ k).sum(0)
    torch.testing.assert_close(attn.key_count, count)
    torch.testing.assert_close(attn.key_sum, total)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing(reentrant: bool) -> None:
    """Neither codes, nor how often a key counts, nor what a dropout behind the attention draws."""
    results = []

    def plain(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return function(x)

    def again(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return checkpoint(function, x, use_reentrant=reentrant)

    for run in (plain, again):
        attn = make(proj_drop=0.5).train()
        for step in range(2):
            x = tokens(step).requires_grad_()
            run(lambda x, attn=attn: attn(x, GRID), x).square().sum().backward()
        results.append([x.grad, attn.qkv.weight.grad, *code_state(attn)])
    assert all(map(torch.equal, *results))


def test_masked_keys_do_not_count() -> None:
    attn, mask = make(decay=0.0).train(), torch.arange(35) < torch.tensor([[35], [20]])
    attn(tokens(), GRID, 0, mask)
    codebook = attn.codebook
    code = nearest(keys(attn, tokens()), codebook).transpose(1, 2)[mask]
    # A code without keys counts one, with which it begins again.
    expected = torch.stack([row.bincount(minlength=CODES) for row in code.T]).clamp(min=1)
    assert torch.equal(attn.key_count, expected.to(attn.key_count.dtype))


@pytest.mark.slow
@pytest.mark.parametrize("checkpointed", [True, False])
def test_compiled_training_learns_the_same_codes(checkpointed: bool) -> None:
    """The recomputation of gradient checkpointing sees buffers that the forward has changed."""
    torch._dynamo.reset()
    results = []
    for compiled in (False, True):
        attn = make().train()
        form = partial(checkpoint, attn, use_reentrant=False) if checkpointed and compiled else attn
        form = torch.compile(form, backend="aot_eager", fullgraph=True) if compiled else form
        torch.manual_seed(1)
        found = []
        for seed in (1, 2):
            x = tokens(seed).requires_grad_()
            y = form(x, GRID)
            found += [y.detach(), *torch.autograd.grad(y.square().sum(), x)]
        results.append(found + code_state(attn))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
