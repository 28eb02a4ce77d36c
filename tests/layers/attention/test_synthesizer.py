"""The weights of the Synthesizer on maps other than their own; its formula is in attention_cases.py."""

import pytest
import torch
from torch import Tensor, nn

from soft_vit.layers.attention.synthesizer import SynthesizerAttention

# Float64 on both sides, sums of at most some hundred terms in another order: 1e3 roundings of 2.2e-16.
TOLERANCE = 1e-12

every_variant = pytest.mark.parametrize("variant", ["dense", "random"])


def make(variant: str, feat_size: tuple[int, int] = (7, 9), **options) -> SynthesizerAttention:
    torch.manual_seed(0)
    attn = SynthesizerAttention(12, 3, feat_size=feat_size, scores=variant, dtype=torch.float64, **options)
    for parameter in attn.parameters():
        nn.init.normal_(parameter, std=0.5)
    return attn.eval()


def tokens(feat_size: tuple[int, int], batch: int = 2) -> Tensor:
    shape = (batch, feat_size[0] * feat_size[1], 12)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@every_variant
def test_resized_weights_give_what_resampling_gave(variant: str) -> None:
    attn, x = make(variant), tokens((15, 13))
    # Weights are resampled in fp32.
    before = attn(x, (15, 13))
    attn.resize((15, 13))
    assert torch.equal(attn(x, (15, 13)), before)
    own_maps = make(variant, (15, 13)).state_dict()
    assert {name: value.shape for name, value in attn.state_dict().items()} == {
        name: value.shape for name, value in own_maps.items()
    }
    assert all(parameter.requires_grad for parameter in attn.parameters())


@every_variant
def test_weights_of_one_map_load_on_another(variant: str) -> None:
    trained, attn = make(variant), make(variant, (15, 13))
    state_dict = {f"attn.{name}": value for name, value in trained.state_dict().items()}
    attn.resample_state("attn.", state_dict)
    attn.load_state_dict({name.removeprefix("attn."): value for name, value in state_dict.items()})
    x = tokens((15, 13))
    assert torch.equal(attn(x, (15, 13)), trained(x, (15, 13)))


@every_variant
def test_scores_that_do_not_depend_on_the_place_survive_another_map(variant: str) -> None:
    attn = make(variant)
    for parameter in attn.scores.parameters():
        nn.init.constant_(parameter, 0.3)
    x = tokens((15, 13))
    # Equal scores average the values, and bilinear weights sum to one.
    expected = attn.proj(attn.v(x).mean(1, keepdim=True)).expand_as(x)
    assert (attn(x, (15, 13)) - expected).norm() <= TOLERANCE * expected.norm()


def test_random_scores_resample_at_both_ends() -> None:
    attn = make("random", (4, 4))
    # Each place looks at its own row: still so, on the whole, on a map twice as fine.
    rows = torch.arange(4.0, dtype=torch.float64)
    with torch.no_grad():
        attn.scores["random"].weight.copy_(
            -20 * (rows[:, None, None, None] - rows[:, None]).square().expand(3, 4, 4, 4, 4)
        )
    matrix = attn.scores["random"](tokens((8, 8)), (8, 8))[0, 0].softmax(-1)
    expected_row = (matrix.view(8, 8, 8, 8).sum(-1) * torch.arange(8.0)).sum(-1)
    assert (expected_row - torch.arange(8.0)[:, None]).abs().max() <= 1
