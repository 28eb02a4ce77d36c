"""Post-norm and pre-norm blocks against their formulas."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from soft_vit.layers import PostNormBlock, PreNormBlock


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
