"""Attention fusion against its formula, as a pooling head and across stages."""

import torch

from soft_vit.layers import AttentionPool

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
