"""A feed-forward layer in parts: the same result and gradients, fewer stored activations."""

import pytest
import torch
from stored import saved_bytes

from soft_vit.layers.mlp import Mlp, apply_in_chunks

# Float64 on both sides, with products of other shapes: 1e3 roundings of 2.2e-16.
TOLERANCE = 1e-12


@pytest.mark.parametrize("chunks", [1, 2, 5, 63, 100])
@pytest.mark.parametrize("tokens", [1, 63])
def test_result_and_gradients_are_the_same(chunks: int, tokens: int) -> None:
    torch.manual_seed(0)
    mlp = Mlp(8, 32, dtype=torch.float64)
    x = torch.randn(2, tokens, 8, dtype=torch.float64, requires_grad=True)
    inputs = (x, *mlp.parameters())
    results = []
    for parts in (1, chunks):
        y = apply_in_chunks(mlp, x, parts)
        results.append([y, *torch.autograd.grad(y.square().sum(), inputs)])
    for whole, in_parts in zip(*results, strict=True):
        assert (in_parts - whole).norm() <= TOLERANCE * whole.norm()
    with torch.no_grad():
        assert (apply_in_chunks(mlp, x, chunks) - results[0][0]).norm() <= TOLERANCE * results[0][0].norm()


def test_hidden_activations_are_not_stored() -> None:
    mlp, x = Mlp(8, 64), torch.randn(1, 1000, 8, requires_grad=True)
    whole, in_parts = (saved_bytes(lambda c=c: apply_in_chunks(mlp, x, c)) for c in (1, 4))
    # Whole: the hidden map before and after GELU. In parts: the input alone.
    hidden, tokens = 1000 * 64 * 4, 1000 * 8 * 4
    assert whole >= 2 * hidden
    assert in_parts <= 2 * tokens
