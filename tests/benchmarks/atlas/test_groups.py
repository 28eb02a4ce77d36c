"""Every kind is in one group, and what the groups say of the tokens that a token sees."""

import pytest
import torch

from benchmarks.atlas.measure import build_attention
from soft_vit.layers import ATTENTIONS
from soft_vit.layers.choice import MIXES_ALL

# Larger than any window, and than what bigbird's blocks cover.
SIDE = 28


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_kinds_that_mix_all_tokens_let_each_see_all(kind):
    attention = build_attention(kind, SIDE, 32).double().eval()
    x = torch.randn(1, SIDE * SIDE, 64, dtype=torch.float64, requires_grad=True)
    out = attention(x, (SIDE, SIDE))
    # The first tokens of bigbird see all; one in the middle does not.
    (grad,) = torch.autograd.grad(out[0, SIDE * SIDE // 2].square().sum(), x)
    seen = bool((grad.abs().sum(-1) > 0).all())
    assert seen == (kind in MIXES_ALL)
