"""What attentions do beyond the formulas of attention_cases.py."""

import pytest
import torch
import torch.nn.functional as F

from soft_vit.layers.attention import inline
from soft_vit.layers.attention.gau import GatedAttentionUnit
from soft_vit.layers.attention.landmarks import landmark_tokens
from soft_vit.layers.attention.spatial_reduction import SpatialReductionAttention
from soft_vit.ops.layout import Layout

# The gated attention unit in half precision; its formula is in attention_cases.py.


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


# The two ways in which each image convolves its values by its own kernels, and what the kernels are made of.


@pytest.mark.parametrize("large", [1 << 17, 0], ids=["at once", "image by image"])
@pytest.mark.parametrize(("size", "sequence"), [((7, 9), False), ((1, 1), False), ((11, 1), True)])
def test_captured_convolution_equals_the_eager_one(size: tuple[int, int], sequence: bool, large, monkeypatch) -> None:
    """A graph gets sums of shifted maps."""
    monkeypatch.setattr(inline, "LARGE_MAP", large)
    maps = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    kernels = torch.randn(2, 3, 3 if sequence else 9, dtype=torch.float64, requires_grad=True)
    results = []
    for captured in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda captured=captured: captured)
        y = inline.convolve_each_image(maps, kernels, sequence)
        results.append([y, *torch.autograd.grad(y.square().sum(), (maps, kernels))])
    for eager, captured in zip(*results, strict=True):
        torch.testing.assert_close(captured, eager, rtol=1e-12, atol=1e-12)


def test_a_mean_that_fp16_holds_needs_no_sum_that_it_does_not() -> None:
    """The sum and the number of these tokens are beyond its 65504."""
    x = torch.full((1, 70000, 2), 4.0, dtype=torch.float16)
    for mask in (None, torch.ones(1, 70000, dtype=torch.bool)):
        assert torch.equal(inline.mean_token(x, mask), torch.full((1, 2), 4.0, dtype=torch.float16))


@pytest.mark.parametrize("landmarks", ["grid", "segment"])
@pytest.mark.parametrize(
    ("grid", "sr_ratio", "limit", "count"),
    [((56, 56), 8, (7, 7), 49), ((7, 9), 2, None, 12), ((100, 168), 8, (7, 7), 49), ((3, 1), 8, (7, 7), 1)],
)
def test_number_of_landmarks(landmarks, grid, sr_ratio, limit, count: int) -> None:
    x = torch.randn(1, 1, grid[0] * grid[1], 2)
    assert landmark_tokens(x, Layout(grid), sr_ratio, limit, landmarks)[0].shape == (1, 1, count, 2)


def test_map_smaller_than_a_window_is_one_key() -> None:
    attn = SpatialReductionAttention(24, 3, feat_size=(3, 5), sr_ratio=8)
    x = torch.randn(1, 15, 24)
    expected = F.conv2d(F.pad(x.mT.view(1, 24, 3, 5), (0, 3, 0, 5)), attn.sr.weight, attn.sr.bias)
    torch.testing.assert_close(attn.reduce(x, Layout((3, 5))), attn.norm(expected.flatten(2).mT))
