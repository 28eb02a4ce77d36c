"""The bodies of PVT and Swin that families share: windows, sizes of images, and released names."""

import pytest
import timm
import torch
from models.zoo.families import FAMILIES, SMALL
from models.zoo.generated import images, relative_error, shapes
from timm.models.swin_transformer import SwinTransformerBlock
from torch import Tensor, nn

from soft_vit.models import checkpoint_filter_fn
from soft_vit.models.swin import SoftmaxBlock, SoftmaxWindows, cut, join, linear_window, window_mask, window_shift

BODIES = [family for family in FAMILIES if family.rpartition("_")[2] in ("pvt", "v2", "swin")]


def create(family: str, **options) -> nn.Module:
    name, small = SMALL[family]
    return timm.create_model(name, **{"num_classes": 7, **small, **options}).eval()


@pytest.mark.parametrize("shifted", [False, True])
def test_softmax_block_equals_timms(shifted: bool) -> None:
    """Where windows cut the map evenly; timm pads without a mask."""
    torch.manual_seed(0)
    block = SoftmaxBlock(12, SoftmaxWindows(12, 3, window_size=3), window=3, shifted=shifted).double()
    theirs = SwinTransformerBlock(12, (9, 12), num_heads=3, window_size=3, shift_size=int(shifted)).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)
    theirs.load_state_dict(block.state_dict())
    if shifted:
        mask = window_mask(torch.zeros((), dtype=torch.float64), (9, 12), (3, 3), 1)
        torch.testing.assert_close(mask, theirs.attn_mask, rtol=0, atol=0)
    x = torch.randn(2, 9, 12, 12, dtype=torch.float64)
    expected = theirs(x).flatten(1, 2)
    torch.testing.assert_close(block(x.flatten(1, 2), (9, 12)), expected, rtol=1e-12, atol=1e-12)


def dense(attn: SoftmaxWindows, x: Tensor, feat_size: tuple[int, int], shift: int) -> Tensor:
    """Attention of all pairs in one window of the rolled map, of those that are neighbours in the map."""
    (H, W), S = feat_size, attn.window_size[0]
    place = torch.arange(H * W)
    row, column = place // W, place % W
    # Rolled to the end of its side, and so apart from what stands there.
    above, left = row < shift, column < shift
    row_window = torch.where(above, H - shift + row, row - shift) // S
    column_window = torch.where(left, W - shift + column, column - shift) // S
    parts = torch.stack([row_window, column_window, above.long(), left.long()])
    together = (parts[:, :, None] == parts[:, None]).all(0)
    offsets = (row[:, None] - row + S - 1) * (2 * S - 1) + column[:, None] - column + S - 1
    bias = attn.relative_position_bias_table[offsets.clamp(0, (2 * S - 1) ** 2 - 1)].permute(2, 0, 1)
    q, k, v = attn.qkv(x).unflatten(2, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    scores = (q @ k.mT * q.shape[-1] ** -0.5 + bias).masked_fill(~together, float("-inf"))
    return attn.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("feat_size", [(6, 9), (7, 8), (2, 5), (4, 4)], ids=str)
@pytest.mark.parametrize("shifted", [False, True])
def test_softmax_windows_leave_padding_and_far_pairs_out(feat_size: tuple[int, int], shifted: bool) -> None:
    """Maps that windows do not cut evenly, or smaller than one."""
    torch.manual_seed(0)
    attn = SoftmaxWindows(8, 2, window_size=3).double()
    nn.init.normal_(attn.relative_position_bias_table)
    block = SoftmaxBlock(8, attn, window=3, shifted=shifted).double()
    x = torch.randn(2, feat_size[0] * feat_size[1], 8, dtype=torch.float64)
    shift = 1 if shifted and min(feat_size) > 3 else 0
    torch.testing.assert_close(block.mix(x, feat_size), dense(attn, x, feat_size, shift), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("feat_size", "window", "size", "shift"),
    [
        ((56, 112), 56, (56, 56), 0),
        ((28, 28), 56, (28, 28), 0),
        ((112, 112), 56, (56, 56), 28),
        ((64, 64), 56, (64, 64), 0),
        ((18, 25), 56, (18, 25), 0),
    ],
)
def test_linear_windows(feat_size: tuple[int, int], window: int, size: tuple[int, int], shift: int) -> None:
    assert linear_window(feat_size, window) == size
    assert window_shift(feat_size, size, True) == shift
    assert window_shift(feat_size, size, False) == 0


def test_windows_join_to_the_map() -> None:
    x = torch.randn(2, 7 * 8, 3)
    for size, shift in (((3, 3), 1), ((7, 7), 0), ((7, 8), 0)):
        windows = cut(x, (7, 8), size, shift)
        assert windows.shape[1] == size[0] * size[1]
        torch.testing.assert_close(join(windows, (7, 8), size, shift), x, rtol=0, atol=0)
    assert window_mask(x, (6, 6), (3, 3), 0) is None


def test_convolutions_of_pvt_v2_begin_with_a_variance_of_two_over_fan_out() -> None:
    torch.manual_seed(0)
    model = timm.create_model("flatten_pvt_v2_b0", depths=(1, 1, 1, 1))
    for name, conv in model.named_modules():
        if isinstance(conv, nn.Conv2d):
            expected = (2 / (conv.kernel_size[0] ** 2 * conv.out_channels / conv.groups)) ** 0.5
            # Five standard errors.
            assert conv.weight.std().item() == pytest.approx(expected, rel=5 / (2 * conv.weight.numel()) ** 0.5), name
            assert not conv.bias.any()


@pytest.mark.parametrize("family", BODIES)
def test_three_stages(family: str) -> None:
    three = {name: value[:3] for name, value in SMALL[family][1].items() if isinstance(value, tuple)}
    model = create(family, img_size=64, **three)
    assert [info["reduction"] for info in model.feature_info] == [4, 8, 16]
    assert model(images(1, 64, 48)).shape == (1, 7)
    with pytest.raises(ValueError, match="num_heads"):
        create(family, num_heads=(1, 3))


@pytest.mark.parametrize("family", BODIES)
def test_released_names_and_back(family: str) -> None:
    """Names and shapes of the released file, and bit for bit."""
    row = FAMILIES[family]
    tiny = timm.create_model(row.tiny, device="meta")
    released = {name: value.shape for name, value in tiny.released_state_dict(tiny.state_dict()).items()}
    assert released == shapes(family, row.tiny)
    model = create(family)
    back = checkpoint_filter_fn(model.released_state_dict(model.state_dict()), model)
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(value, back[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("family", BODIES)
def test_weights_of_another_size_are_resampled(family: str) -> None:
    """A model built for 64 x 96 takes those of 64 x 64, as does one that is set to that size."""
    torch.manual_seed(0)
    square, x = create(family, img_size=64), images(1, 64, 96)
    built = create(family, img_size=(64, 96))
    built.load_state_dict(square.state_dict())
    square.set_input_size((64, 96))
    with torch.no_grad():
        assert relative_error(built(x), square(x)) < 1e-5
    for name, value in square.state_dict().items():
        torch.testing.assert_close(built.state_dict()[name], value, msg=name)
