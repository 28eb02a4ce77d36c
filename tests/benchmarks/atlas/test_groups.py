"""Every kind is in one group, and what the groups say of the tokens that a token sees."""

import pytest
import torch

from benchmarks.atlas.groups import GROUPS
from benchmarks.atlas.measure import build_attention
from soft_vit.layers import ATTENTIONS
from soft_vit.layers.choice import MIXES_ALL

# Larger than any window, and than what bigbird's blocks cover.
SIDE = 28


def test_every_kind_but_softmax_and_none_is_in_one_group():
    grouped = [kind for kinds in GROUPS.values() for kind in kinds]
    assert sorted(grouped) == sorted(ATTENTIONS.keys() - {"softmax", "none"})


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_kinds_that_mix_all_tokens_let_each_see_all(kind):
    attention = build_attention(kind, SIDE, 32).double().eval()
    x = torch.randn(1, SIDE * SIDE, 64, dtype=torch.float64, requires_grad=True)
    out = attention(x, (SIDE, SIDE))
    # The first tokens of bigbird see all; one in the middle does not.
    (grad,) = torch.autograd.grad(out[0, SIDE * SIDE // 2].square().sum(), x)
    seen = bool((grad.abs().sum(-1) > 0).all())
    assert seen == (kind in MIXES_ALL)
