"""Projections of the Linformer on maps other than their own; its formula is in attention_cases.py."""

import pytest
import torch
from torch import Tensor

from soft_vit.layers.attention.linformer import LinformerProjection, resample_projection
from soft_vit.models import PyramidViT, checkpoint_filter_fn

SIZE = dict(embed_dims=(8, 8, 16, 16), num_heads=(1, 2, 2, 2), depths=(1, 1, 1, 1), stem_width=8, num_classes=5)


@pytest.mark.parametrize("new", [(14, 18), (15, 13), (3, 4), (1, 1)])
def test_resampled_rows_keep_the_projection_of_a_constant(new: tuple[int, int]) -> None:
    weight = LinformerProjection((7, 9), 10).weight_k
    resampled = resample_projection(weight, new)
    assert resampled.shape == (1, 10, *new)
    # Sums of up to 252 entries of about 1/8 in fp32.
    torch.testing.assert_close(resampled.sum((-2, -1)), weight.sum((-2, -1)), rtol=0, atol=1e-5)


def test_resampled_projection_sees_a_smooth_map_alike() -> None:
    y, x = torch.linspace(-1, 1, 17)[1::2], torch.linspace(-1, 1, 17)[1::2]
    weight = torch.stack(
        [(-4 * ((y[:, None] - a).square() + (x - b).square())).exp() for a, b in [(0, 0), (0.3, -0.2)]]
    )
    fine = (torch.arange(32) + 0.5) / 16 - 1

    def smooth_map(y: Tensor, x: Tensor) -> Tensor:
        return torch.sin(2 * y[:, None] + x)

    before = (weight * smooth_map(y, x)).sum((-2, -1))
    after = (resample_projection(weight[None], (32, 32))[0] * smooth_map(fine, fine)).sum((-2, -1))
    # The sum over a finer grid is the same integral, by a rule of error O(h^2), h = 1/4.
    torch.testing.assert_close(after, before, rtol=0, atol=0.05 * float(weight.sum((-2, -1)).max()))


def test_resizing_keeps_the_function_on_the_new_map() -> None:
    model = PyramidViT(img_size=64, attention="linformer", **SIZE).eval()
    x = torch.randn(1, 3, 96, 128)
    before = model(x)
    model.set_input_size((96, 128))
    assert model.stages[0].blocks[0].attn.projection.weight_k.shape[-2:] == (24, 32)
    # The position embedding and the projections are resampled by the same functions, once and not in each call.
    assert torch.equal(model(x), before)


def test_weights_of_another_size_load() -> None:
    trained = PyramidViT(img_size=64, attention="linformer", **SIZE).eval()
    model = PyramidViT(img_size=96, attention="linformer", **SIZE).eval()
    model.load_state_dict(checkpoint_filter_fn(trained.state_dict(), model))
    x = torch.randn(1, 3, 96, 96)
    assert torch.equal(model(x), trained(x))
