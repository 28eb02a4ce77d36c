"""The row of one token, and its picture."""

import numpy as np
import pytest
import timm
import torch

from soft_vit.probe.matrix import watch_attention
from soft_vit.probe.view import attention_row

SIZE = (72, 104)
GRIDS = [(18, 26), (9, 13), (5, 7), (3, 4)]
IMAGE = torch.rand(3, *SIZE, generator=torch.Generator().manual_seed(0))


def model_of(attention: str, **kwargs):
    torch.manual_seed(0)
    return timm.create_model("soft_pico", attention=attention, img_size=SIZE, **kwargs).eval()


@pytest.mark.parametrize("stage", [1, 2, 3, 4])
def test_row_is_that_of_the_matrix(stage):
    model, seen = model_of("nystrom"), []
    row = attention_row(model, IMAGE, stage, (2, 1))
    with watch_attention(model.stages[stage - 1].blocks[-1].attn, seen.append), torch.no_grad():
        model.forward_features(IMAGE[None])
    height, width = GRIDS[stage - 1]
    # The last stage has a class token in front.
    prefix = model.stages[stage - 1].num_prefix_tokens
    expected = seen[0][0, :, prefix + 2 * width + 1, prefix:].reshape(-1, height, width)
    assert row.feat_size == (height, width)
    np.testing.assert_allclose(row.weights, expected.numpy(), rtol=1e-5, atol=1e-7)
    assert attention_row(model, IMAGE, stage).query == (height // 2, width // 2)


@pytest.mark.parametrize(("options", "grid"), [({}, (2, 3)), ({"linear": True}, (7, 7))])
def test_keys_on_a_grid_of_their_own(options, grid):
    row = attention_row(model_of("spatial_reduction", **options), IMAGE, 2)
    assert row.weights.shape[1:] == grid
    np.testing.assert_allclose(row.weights.sum((1, 2)), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [({"stage": 0}, "0"), ({"stage": 3, "layer": 2}, "2"), ({"stage": 2, "query": (9, 0)}, "9 0")],
)
def test_mistakes(arguments, value):
    with pytest.raises(ValueError, match=f"got {value}"):
        attention_row(model_of("soft"), IMAGE, **arguments)
