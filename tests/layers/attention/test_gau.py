"""The gated attention unit against its formula over all pairs of tokens."""

import pytest
import torch
import torch.nn.functional as F

from soft_vit.layers.attention.gau import GatedAttentionUnit
from soft_vit.ops.layout import Layout

# Float64 on both sides, sums of at most some hundred terms in another order: 1e3 roundings of 2.2e-16.
TOLERANCE = 1e-12


def make(**options) -> GatedAttentionUnit:
    torch.manual_seed(0)
    attn = GatedAttentionUnit(24, 3, feat_size=(7, 9), dtype=torch.float64, **options)
    for parameter in attn.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return attn


def test_an_average_that_half_precision_holds_needs_no_sum_that_it_does_not() -> None:
    """All tokens alike: the average of their products is 64, and the sum beyond the 65504 of fp16."""
    token = torch.full((1, 1, 8), 8.0, dtype=torch.float16).expand(1, 2000, 8)
    attn = GatedAttentionUnit(4, 1)
    with torch.no_grad():
        # The linear part alone.
        attn.scale.copy_(torch.tensor([0.0, 0.0, 1.0, 1.0]).repeat(8, 1).mT)
        x = attn.attend(token, token, Layout((2000, 1)), gate=torch.ones_like(token))
    one, eight = F.silu(torch.tensor([1.0, 8.0]))
    torch.testing.assert_close(x, (one * 8 * eight**3).to(x.dtype).expand_as(x))


@pytest.mark.parametrize("bias", [True, False])
def test_training_on_many_tokens_projects_to_z_once_more(bias: bool) -> None:
    """Against a subclass of nn.Linear, whose results are kept."""

    class Kept(torch.nn.Linear):
        pass

    attn = make(qkv_bias=bias)
    x = torch.randn(2, 2100, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    inputs = {"x": x, **dict(attn.named_parameters())}
    grads = torch.autograd.grad(attn(x, (42, 50)).square().sum(), inputs.values())
    attn.z.__class__ = Kept
    expected = torch.autograd.grad(attn(x, (42, 50)).square().sum(), inputs.values())
    for name, grad, expected_grad in zip(inputs, grads, expected, strict=True):
        assert (grad - expected_grad).norm() <= TOLERANCE * expected_grad.norm(), name
