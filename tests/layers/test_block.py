"""Blocks, embeddings, pooling, feed-forward layers in parts and resampling, against their formulas."""

import pytest
import torch
import torch.nn.functional as F
from attention_cases import Case, every, make, tokens, using
from stored import saved_bytes
from torch import nn

from soft_vit.layers import ATTENTIONS, AttentionPool, ConvPatchEmbed, PostNormBlock, PreNormBlock, resample_pos_embed
from soft_vit.layers.attention.linformer import LinformerProjection, resample_projection
from soft_vit.layers.attention.synthesizer import resample_map, resample_pairs
from soft_vit.layers.mlp import Mlp, apply_in_chunks

# Post-norm and pre-norm blocks against their formulas.


class Doubling(nn.Module):
    def forward(self, x, feat_size, num_prefix_tokens):
        return 2 * x


def mlp(block, x, approximate):
    return block.mlp.fc2(F.gelu(block.mlp.fc1(x), approximate=approximate))


def test_formulas():
    post, pre = (kind(8, Doubling(), dtype=torch.float64) for kind in (PostNormBlock, PreNormBlock))
    x = torch.randn(2, 63, 8, dtype=torch.float64)
    y = F.layer_norm(3 * x, (8,), eps=1e-5)
    torch.testing.assert_close(post(x, (7, 9)), F.layer_norm(y + mlp(post, y, "tanh"), (8,), eps=1e-5))
    y = x + 2 * F.layer_norm(x, (8,), eps=1e-6)
    torch.testing.assert_close(pre(x, (7, 9)), y + mlp(pre, F.layer_norm(y, (8,), eps=1e-6), "none"))


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


# Position embeddings and weights of a map on another map.


def test_resampled_position_embedding():
    """Bilinear with half-pixel centres: a ramp stays one inside, and the class token keeps its slot."""
    ramp = torch.arange(8.0).repeat(6, 1).reshape(1, 48, 1)
    pos_embed = torch.cat([torch.full((1, 1, 1), 100.0), ramp], dim=1)
    resampled = resample_pos_embed(pos_embed, (6, 8), (9, 16), 1)
    assert resampled.shape == (1, 1 + 9 * 16, 1)
    assert resampled[0, 0] == 100
    row = resampled[0, 1:, 0].reshape(9, 16)[4]
    torch.testing.assert_close(row[1:-1], torch.arange(14) * 0.5 + 0.25)


RESAMPLERS = [
    lambda weight, size: resample_pos_embed(weight.flatten(2).mT, (6, 8), size).mT.unflatten(2, size),
    resample_map,
    # Here to twice the tokens, so entries are half as large.
    lambda weight, size: 2 * resample_projection(weight, size),
]


@pytest.mark.parametrize("resample", RESAMPLERS, ids=["position embedding", "scores", "projection"])
def test_weights_are_resampled_in_double_precision(resample):
    weight = torch.randn(1, 3, 6, 8, dtype=torch.float64)
    expected = F.interpolate(weight, size=(6, 16), mode="bilinear", align_corners=False)
    torch.testing.assert_close(resample(weight, (6, 16)), expected, rtol=1e-12, atol=1e-12)


def test_scores_of_pairs_are_resampled_at_both_ends():
    a, b = torch.randn(2, 1, 6, 8, dtype=torch.float64)
    pairs = resample_pairs(a[..., None, None] * b[:, None, None], (9, 7))
    torch.testing.assert_close(pairs, resample_map(a, (9, 7))[..., None, None] * resample_map(b, (9, 7))[:, None, None])


@pytest.mark.parametrize("new", [(14, 18), (15, 13), (3, 4), (1, 1)])
def test_resampled_rows_keep_the_projection_of_a_constant(new):
    weight = LinformerProjection((7, 9), 10, dtype=torch.float64).weight_k
    resampled = resample_projection(weight, new)
    assert resampled.shape == (1, 10, *new)
    torch.testing.assert_close(resampled.sum((-2, -1)), weight.sum((-2, -1)), rtol=1e-12, atol=1e-12)


@every([case for case in using("contract") if ATTENTIONS[case.kind].traits.fixed_grid])
def test_weights_of_another_map(case: Case):
    """Resampled by each call, in place, or on their way from a state dict."""
    trained, loaded, x = make(case, (8, 8)), make(case, (15, 13)), tokens(2, 195)
    state = {f"attn.{name}": value.clone() for name, value in trained.state_dict().items()}
    loaded.resample_state("attn.", state)
    loaded.load_state_dict({name.removeprefix("attn."): value for name, value in state.items()})
    expected = trained(x, (15, 13))
    trained.resize((15, 13))
    for attn in (loaded, trained):
        assert torch.equal(attn(x, (15, 13)), expected)
        assert all(parameter.requires_grad for parameter in attn.parameters())
