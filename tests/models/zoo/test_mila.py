"""What MILA has of its own: zeros beside odd maps, where the released dense code puts them."""

import timm
import torch
from models.zoo.families import SMALL
from models.zoo.generated import images
from torch.nn import functional as F


def test_an_odd_map_is_padded_before_its_first_convolution() -> None:
    """The strip beside it holds what the bias makes of zeros, and not the zeros of the next convolution's padding."""
    name, small = SMALL["mila"]
    torch.manual_seed(0)
    model = timm.create_model(name, **small).eval()
    # To multiples of 4 before the stem.
    x = images(1, 75, 98)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model(F.pad(x, (0, 2, 0, 1))))
        narrow, wide, last = model.layers[0].downsample.conv
        features = model.forward_intermediates(x, [0], intermediates_only=True)[0]
        assert features.shape[2:] == (19, 25)
        hidden = narrow.conv.bias.relu()[None, :, None, None].expand(1, -1, 20, 26).clone()
        hidden[:, :, :19, :25] = narrow(features)
        expected = last(wide(hidden))
        torch.testing.assert_close(model.layers[0].downsample(features), expected)
        other = last(wide(narrow(features)))
    assert expected.shape == other.shape
    assert not torch.allclose(expected, other)
