"""Blocks, embeddings and the activation between them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from soft_vit.layers import ConvPatchEmbed, PostNormBlock, PreNormBlock, resample_pos_embed
from soft_vit.layers.attention.linformer import resample_projection
from soft_vit.layers.attention.synthesizer import resample_map
from soft_vit.layers.mlp import gelu_of_temporary


class Doubling(nn.Module):
    def forward(self, x, feat_size):
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


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (224, 97)])
def test_patch_embedding_rounds_up(size):
    embed = ConvPatchEmbed(3, (4, 4, 8), (2, 1, 2))
    rounded_up = tuple(-(-side // 4) for side in size)
    assert embed(torch.randn(1, 3, *size)).shape == (1, 8, *rounded_up)


def test_patch_embedding_is_convolution_norm_relu():
    embed = ConvPatchEmbed(3, (4,), (2,), dtype=torch.float64).eval()
    unit = embed[0]
    nn.init.normal_(unit.norm.running_mean)
    nn.init.uniform_(unit.norm.running_var, 0.5, 2)
    x = torch.randn(2, 3, 9, 7, dtype=torch.float64)
    y = F.conv2d(x, unit.conv.weight, unit.conv.bias, stride=2, padding=1)
    mean, var = unit.norm.running_mean[:, None, None], unit.norm.running_var[:, None, None]
    torch.testing.assert_close(embed(x), ((y - mean) / (var + 1e-5).sqrt()).relu())


def test_position_embedding_on_its_own_grid_is_itself():
    pos_embed = torch.randn(1, 1 + 63, 5)
    assert resample_pos_embed(pos_embed, (7, 9), (7, 9), 1) is pos_embed


def test_resampled_position_embedding():
    """Bilinear with half-pixel centres: a ramp stays one inside, and the class token keeps its slot."""
    ramp = torch.arange(8.0).repeat(6, 1).reshape(1, 48, 1)
    pos_embed = torch.cat([torch.full((1, 1, 1), 100.0), ramp], dim=1)
    resampled = resample_pos_embed(pos_embed, (6, 8), (9, 16), 1)
    assert resampled.shape == (1, 1 + 9 * 16, 1)
    assert resampled[0, 0] == 100
    row = resampled[0, 1:, 0].reshape(9, 16)[4]
    torch.testing.assert_close(row[1:-1], torch.arange(14) * 0.5 + 0.25)


@pytest.mark.parametrize(
    "resample",
    [
        lambda weight, size: resample_pos_embed(weight.flatten(2).mT, (6, 8), size).mT.unflatten(2, size),
        resample_map,
        # Here to twice the tokens, so entries are half as large.
        lambda weight, size: 2 * resample_projection(weight, size),
    ],
    ids=["position embedding", "scores", "projection"],
)
def test_weights_are_resampled_in_double_precision(resample):
    weight = torch.randn(1, 3, 6, 8, dtype=torch.float64)
    expected = F.interpolate(weight, size=(6, 16), mode="bilinear", align_corners=False)
    torch.testing.assert_close(resample(weight, (6, 16)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_overwrites_its_input_only_without_autograd(approximate):
    x = torch.randn(5, 7)
    expected = F.gelu(x, approximate=approximate)
    kept = x.clone()
    torch.testing.assert_close(gelu_of_temporary(kept, approximate), expected, rtol=0, atol=0)
    assert torch.equal(kept, x)
    with torch.no_grad():
        assert gelu_of_temporary(kept, approximate) is kept
    torch.testing.assert_close(kept, expected, rtol=0, atol=0)
