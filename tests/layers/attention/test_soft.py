"""Softmax-free attention against the text of its definition, and the ways of sampling bottleneck tokens."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers.attention.soft import SoftAttention, SoftPlusAttention
from soft_vit.ops.layout import Layout


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("inverse", ["newton", "cholesky"])
@pytest.mark.parametrize("spread", [0.0, 1.0, 100.0])
def test_normalised_rows_are_averages(dtype, inverse, spread):
    """Between the smallest and the largest value, or near zero far from all bottleneck tokens, in any dtype."""
    layer = SoftPlusAttention(32, 1, feat_size=(64, 80), sr_ratio=8, local_kernel=0, inverse=inverse)
    nn.init.eye_(layer.proj.weight)
    x = 1 + spread * torch.randn(1, 64 * 80, 32)
    wide = layer(x, (64, 80))
    narrow = layer.to(dtype)(x.to(dtype), (64, 80))
    assert narrow.isfinite().all()
    assert wide.abs().max() <= 4 * layer.float().v(x).abs().max()
    if spread <= 1:
        # An average of values of size 1 in a dtype with 8 bits or more.
        torch.testing.assert_close(narrow.float(), wide, rtol=0.05, atol=0.05)


def bottleneck(layer: SoftAttention, q: Tensor) -> Tensor:
    """Bottleneck tokens `[B, heads, M, D]` of query maps `[B, C, H, W]`."""
    heads = q.flatten(2).unflatten(1, (layer.num_heads, -1)).mT
    return layer.sample_bottleneck(heads, Layout(tuple(q.shape[2:])))


@pytest.mark.parametrize("sampling", ["conv", "avg", "random", "first"])
def test_number_of_bottleneck_tokens(sampling):
    """The paper's ablation: any of these counts in every stage at 224 pixels."""
    for count, (sr_ratio, side) in itertools.product((36, 49, 64, 81), ((8, 56), (4, 28), (2, 14))):
        layer = SoftAttention(32, 1, feat_size=(side, side), sr_ratio=sr_ratio, sampling=sampling, num_bottleneck=count)
        assert bottleneck(layer, torch.randn(1, 32, side, side)).shape == (1, 1, count, 32)


@pytest.mark.parametrize("sampling", ["conv", "avg", "random", "first"])
def test_capped_bottleneck(sampling):
    layer = SoftAttention(32, 1, feat_size=(28, 28), sr_ratio=4, sampling=sampling, max_bottleneck=(7, 7))
    free = SoftAttention(32, 1, feat_size=(28, 28), sr_ratio=4, sampling=sampling)
    free.load_state_dict(layer.state_dict())
    at_224 = torch.randn(2, 32, 28, 28)
    torch.testing.assert_close(bottleneck(layer.eval(), at_224), bottleneck(free.eval(), at_224), rtol=0, atol=0)
    for size, capped in (((61, 40), 49), ((61, 20), 35), ((12, 80), 21)):
        assert bottleneck(layer, torch.randn(1, 32, *size)).shape[2] == capped


def test_random_tokens_are_distinct_members_of_the_map():
    layer = SoftAttention(32, 1, feat_size=(15, 13), sr_ratio=2, sampling="random")
    q = torch.arange(15 * 13.0).reshape(1, 1, 15, 13)
    for training in (True, False):
        tokens = bottleneck(layer.train(training), q).flatten()
        assert len(tokens.unique()) == len(tokens) == 7 * 6
        assert torch.equal(tokens.sort()[0], tokens)


def test_a_map_smaller_than_a_window_has_zeros_around_it():
    layer = SoftAttention(32, 1, feat_size=(8, 8), sr_ratio=8)
    q = torch.randn(1, 1, 63, 32)
    padded = F.pad(q.unflatten(2, (7, 9)), (0, 0, 0, 0, 0, 1)).flatten(2, 3)
    found, expected = (layer.sample_bottleneck(x, Layout(size)) for x, size in ((q, (7, 9)), (padded, (8, 9))))
    torch.testing.assert_close(found, expected)


def test_transforms_of_functions():
    torch.manual_seed(0)
    attn = SoftAttention(16, 2, feat_size=(6, 9), sr_ratio=3, newton_gradient="closed_form").double()
    x = torch.randn(2, 54, 16, dtype=torch.float64)
    closed_form = attn.options
    attn.options = replace(closed_form, newton_gradient="unrolled")
    x.requires_grad_()
    (expected,) = torch.autograd.grad(attn(x, (6, 9)).square().sum(), x)
    attn.options = closed_form
    torch.testing.assert_close(torch.func.grad(lambda x: attn(x, (6, 9)).square().sum())(x), expected)
    attn.requires_grad_(False)
    each = torch.func.vmap(lambda x: attn(x[None], (6, 9))[0])(x.detach())
    torch.testing.assert_close(each, attn(x.detach(), (6, 9)))
