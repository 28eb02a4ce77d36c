import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.layers.attention.performer import (
    PerformerAttention,
    favor_attention,
    key_exponents,
    key_features,
    orthogonal_random_features,
    query_features,
)


def inputs(scale: float = 1.0, num_tokens: int = 63, dim: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, num_tokens, dim, generator=generator, dtype=torch.float64)
    return scale * q, scale * k, v


def draw(num_features: int, dim: int, seed: int) -> Tensor:
    return orthogonal_random_features(num_features, dim, torch.Generator().manual_seed(seed)).double()


def softmax_features(q: Tensor, k: Tensor, projection: Tensor) -> tuple[Tensor, Tensor]:
    largest = key_exponents(k, projection).amax(2, keepdim=True)
    return query_features(q, projection, largest), key_features(k, projection, largest)


def test_features_are_orthogonal_in_blocks_and_as_long_as_normal_vectors() -> None:
    features = draw(40, 16, 0)
    for block in features.split(16):
        gram = F.normalize(block, dim=-1) @ F.normalize(block, dim=-1).mT
        # Orthogonal to the rounding of an fp32 QR.
        torch.testing.assert_close(gram, torch.eye(len(block), dtype=gram.dtype), rtol=0, atol=1e-5)
    # ||w||^2 of a normal vector has mean d and variance 2 d.
    squares = draw(16000, 16, 1).square().sum(-1)
    assert abs(squares.mean() - 16) < 5 * math.sqrt(2 * 16 / 16000)
    # No direction is preferred: the mean of 16000 normal vectors is within 5 sigma of zero.
    assert draw(16000, 16, 2).mean(0).abs().max() < 5 / math.sqrt(16000)


def test_products_of_features_estimate_the_softmax_kernel() -> None:
    q, k, _ = inputs(0.5, num_tokens=5)
    exact = (q @ k.mT / 4).exp()
    estimates = []
    for seed in range(400):
        projection = draw(64, 16, seed)
        phi_q, phi_k = softmax_features(q, k, projection)
        # The factors that are taken out of each feature and query, put back.
        scaled_q, scaled_k = q / 2, k / 2
        largest_key = (scaled_k @ projection.mT - scaled_k.square().sum(-1, keepdim=True) / 2).amax(-2, keepdim=True)
        exponent = scaled_q @ projection.mT + largest_key
        factor = (exponent.amax(-1, keepdim=True) - scaled_q.square().sum(-1, keepdim=True) / 2).exp()
        estimates.append(factor * (phi_q @ phi_k.mT) / 64)
    estimates = torch.stack(estimates)
    sigma = estimates.std(0) / math.sqrt(len(estimates))
    # 50 means of 400 estimates each, all within 5 sigma of the exact kernel.
    assert ((estimates.mean(0) - exact).abs() < 5 * sigma).all()


@pytest.mark.parametrize("kernel", ["softmax", "relu"])
def test_equals_the_dense_formula(kernel) -> None:
    q, k, v = inputs()
    projection = draw(55, 16, 0)
    scaled_q, scaled_k = q / 2, k / 2
    if kernel == "relu":
        phi_q, phi_k = ((x @ projection.mT).relu() + 1e-3 for x in (scaled_q, scaled_k))
    else:
        phi_q, phi_k = ((x @ projection.mT - x.square().sum(-1, keepdim=True) / 2).exp() for x in (scaled_q, scaled_k))
    weight = phi_q @ phi_k.mT
    expected = weight / weight.sum(-1, keepdim=True) @ v
    torch.testing.assert_close(favor_attention(q, k, v, projection, kernel), expected, rtol=1e-11, atol=1e-12)


def test_stabilisation_does_not_change_the_gradient() -> None:
    ours, reference = ([x.requires_grad_() for x in inputs()] for _ in range(2))
    projection = draw(55, 16, 0)
    favor_attention(*ours, projection).square().sum().backward()
    q, k, v = reference
    phi_q, phi_k = ((x / 2 @ projection.mT - (x / 2).square().sum(-1, keepdim=True) / 2).exp() for x in (q, k))
    weight = phi_q @ phi_k.mT
    (weight / weight.sum(-1, keepdim=True) @ v).square().sum().backward()
    for name, mine, theirs in zip("qkv", ours, reference, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("scale", [1e-3, 10.0, 1e3])
def test_normaliser_never_vanishes(scale: float) -> None:
    q, k, v = (x.float() for x in inputs(scale))
    phi_q, phi_k = softmax_features(q, k, draw(55, 16, 0).float())
    assert ((phi_q * phi_k.sum(-2, keepdim=True)).sum(-1) >= 1).all()
    x = favor_attention(q, k, v, draw(55, 16, 0).float())
    assert x.abs().max() <= v.abs().max() * (1 + 1e-5)


def test_features_change_by_redraw_alone() -> None:
    attn = PerformerAttention(32, 1, feat_size=(7, 9))
    x, feat_size = torch.randn(1, 63, 32), (7, 9)
    assert attn.projection.shape == (110, 32)
    before = attn.train()(x, feat_size)
    assert torch.equal(attn(x, feat_size), before)
    attn.redraw(torch.Generator().manual_seed(3))
    first = attn.projection.clone()
    assert not torch.equal(attn(x, feat_size), before)
    attn.redraw(torch.Generator().manual_seed(3))
    assert torch.equal(attn.projection, first)
    other = PerformerAttention(32, 1, feat_size=(7, 9))
    other.load_state_dict(attn.state_dict())
    assert torch.equal(other(x, feat_size), attn(x, feat_size))
