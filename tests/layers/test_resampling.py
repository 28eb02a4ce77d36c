"""Position embeddings and weights of a map on another map."""

import pytest
import torch
import torch.nn.functional as F
from attention_cases import Case, every, make, tokens, using

from soft_vit.layers import ATTENTIONS, resample_pos_embed
from soft_vit.layers.attention.linformer import LinformerProjection, resample_projection
from soft_vit.layers.attention.synthesizer import resample_map, resample_pairs


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


def test_scores_of_pairs_are_resampled_at_both_ends():
    a, b = torch.randn(2, 1, 6, 8, dtype=torch.float64)
    pairs = resample_pairs(a[..., None, None] * b[:, None, None], (9, 7))
    torch.testing.assert_close(pairs, resample_map(a, (9, 7))[..., None, None] * resample_map(b, (9, 7))[:, None, None])


@pytest.mark.parametrize("new", [(14, 18), (15, 13), (3, 4), (1, 1)])
def test_resampled_rows_keep_the_projection_of_a_constant(new):
    weight = LinformerProjection((7, 9), 10, dtype=torch.float64).weight_k
    resampled = resample_projection(weight, new)
    assert resampled.shape == (1, 10, *new)
    torch.testing.assert_close(resampled.sum((-2, -1)), weight.sum((-2, -1)), rtol=1e-12, atol=1e-12)


@every([case for case in using("contract") if ATTENTIONS[case.kind].fixed_feat_size])
def test_weights_of_another_map(case: Case):
    """Resampled by each call, in place, or on their way from a state dict."""
    trained, loaded, x = make(case, (8, 8)), make(case, (15, 13)), tokens(2, 195)
    state = {f"attn.{name}": value.clone() for name, value in trained.state_dict().items()}
    loaded.resample_state("attn.", state)
    loaded.load_state_dict({name.removeprefix("attn."): value for name, value in state.items()})
    expected = trained(x, (15, 13))
    trained.resize((15, 13))
    for attn in (loaded, trained):
        assert torch.equal(attn(x, (15, 13)), expected)
        assert all(parameter.requires_grad for parameter in attn.parameters())
