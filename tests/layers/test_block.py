"""Blocks, embeddings, pooling and feed-forward layers in parts, against their formulas."""

import pytest
import torch
import torch.nn.functional as F
from stored import saved_bytes
from torch import nn

from soft_vit.layers import AttentionPool, ConvPatchEmbed, PostNormBlock, PreNormBlock
from soft_vit.layers.mlp import Mlp, apply_in_chunks

# Post-norm and pre-norm blocks against their formulas.


class Doubling(nn.Module):
    def forward(self, x, feat_size, num_prefix_tokens):
        return 2 * x


def mlp(block, x, approximate):
    return block.mlp.fc2(F.gelu(block.mlp.fc1(x), approximate=approximate))


def test_post_norm():
    block = PostNormBlock(8, Doubling(), dtype=torch.float64)
    x = torch.randn(2, 63, 8, dtype=torch.float64)
    y = F.layer_norm(3 * x, (8,), eps=1e-5)
    expected = F.layer_norm(y + mlp(block, y, "tanh"), (8,), eps=1e-5)
    torch.testing.assert_close(block(x, (7, 9)), expected)


def test_pre_norm():
    block = PreNormBlock(8, Doubling(), dtype=torch.float64)
    x = torch.randn(2, 64, 8, dtype=torch.float64)
    y = x + 2 * F.layer_norm(x, (8,), eps=1e-6)
    expected = y + mlp(block, F.layer_norm(y, (8,), eps=1e-6), "none")
    torch.testing.assert_close(block(x, (7, 9)), expected)


@pytest.mark.parametrize(("mode", "whole_samples"), [("stochastic_depth", True), ("dropout", False)])
def test_what_drop_path_drops(mode, whole_samples):
    block = PostNormBlock(8, Doubling(), drop_path=0.5, drop_path_mode=mode)
    dropped = block.drop_path1(torch.ones(200, 5, 8)) == 0
    by_sample = dropped.flatten(1).float().mean(1)
    assert 0.3 < by_sample.mean() < 0.7
    assert bool(((by_sample == 0) | (by_sample == 1)).all()) == whole_samples


# Attention fusion against its formula, as a pooling head and across stages.


# Float64 on both sides, sums of at most some hundred terms in another order: 1e3 roundings of 2.2e-16.
TOLERANCE = 1e-12


def test_equals_its_formula_source_by_source():
    torch.manual_seed(0)
    pool = AttentionPool(6, dtype=torch.float64)
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    W, b, c = pool.hidden.weight, pool.hidden.bias, pool.score.weight[0]
    for image in range(3):
        scores = torch.stack([c @ (W @ x[image, p] + b).clamp(min=0) for p in range(4)])
        shares = scores.exp() / scores.exp().sum()
        expected = sum(shares[p] * x[image, p] for p in range(4))
        assert (pool(x)[image] - expected).norm() <= TOLERANCE * expected.norm()


# Units of convolution, norm and ReLU that embed a map.


def test_patch_embedding_is_convolution_norm_relu():
    embed = ConvPatchEmbed(3, (4,), (2,), dtype=torch.float64).eval()
    unit = embed[0]
    nn.init.normal_(unit.norm.running_mean)
    nn.init.uniform_(unit.norm.running_var, 0.5, 2)
    x = torch.randn(2, 3, 9, 7, dtype=torch.float64)
    y = F.conv2d(x, unit.conv.weight, unit.conv.bias, stride=2, padding=1)
    mean, var = unit.norm.running_mean[:, None, None], unit.norm.running_var[:, None, None]
    torch.testing.assert_close(embed(x), ((y - mean) / (var + 1e-5).sqrt()).relu())


# A feed-forward layer in parts: the same result and gradients, fewer stored activations.


# Float64 on both sides, with products of other shapes: 1e3 roundings of 2.2e-16.


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
