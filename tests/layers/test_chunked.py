"""A feed-forward layer in parts: the same result and gradients, fewer stored activations."""

import pytest
import torch
from stored import saved_bytes

from soft_vit.layers import PreNormBlock, attention_class
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


def test_dropout_is_the_same_when_computed_again() -> None:
    torch.manual_seed(0)
    mlp = Mlp(8, 32, drop=0.5, dtype=torch.float64).train()
    x = torch.randn(1, 50, 8, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(1)
    y = apply_in_chunks(mlp, x, 3)
    torch.manual_seed(1)
    expected = torch.cat([mlp(part) for part in x.tensor_split(3, dim=1)], dim=1)
    assert torch.equal(y, expected)
    grads, expected_grads = (torch.autograd.grad(out.square().sum(), (x, *mlp.parameters())) for out in (y, expected))
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert (grad - expected_grad).norm() <= TOLERANCE * expected_grad.norm()


def test_no_chunks_are_refused() -> None:
    with pytest.raises(ValueError, match="mlp_chunks"):
        PreNormBlock(8, attention_class("softmax")(8, 2, feat_size=(3, 3)), mlp_chunks=0)
