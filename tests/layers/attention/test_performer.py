import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.layers.attention.performer import (
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


@pytest.mark.parametrize("scale", [1e-3, 10.0, 1e3])
def test_normaliser_never_vanishes(scale: float) -> None:
    q, k, v = (x.float() for x in inputs(scale))
    phi_q, phi_k = softmax_features(q, k, draw(55, 16, 0).float())
    assert ((phi_q * phi_k.sum(-2, keepdim=True)).sum(-1) >= 1).all()
    x = favor_attention(q, k, v, draw(55, 16, 0).float())
    assert x.abs().max() <= v.abs().max() * (1 + 1e-5)
