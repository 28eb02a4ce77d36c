"""The models to look at, and where a figure is drawn."""

import pytest
import timm
import torch

from soft_vit.probe.load import load_pyramid


@pytest.mark.parametrize("name", ["soft_pico", "soft_pico.shapes"])
def test_recorded_weights_and_those_of_a_file(name, tmp_path):
    model, title = load_pyramid(name)
    assert title == "soft_pico.shapes, pretrained"
    assert not model.training
    recorded = timm.create_model("soft_pico.shapes", pretrained=True)
    torch.testing.assert_close(model.state_dict(), recorded.state_dict(), rtol=0, atol=0)
    source = timm.create_model("soft_pico", img_size=64, num_classes=7).eval()
    torch.save(source.state_dict(), tmp_path / "epoch_5.pth")
    model, title = load_pyramid(name, (64, 64), checkpoint=tmp_path / "epoch_5.pth")
    assert title == "soft_pico, epoch_5.pth"
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(model.forward_features(x), source.forward_features(x), rtol=0, atol=0)


@pytest.mark.parametrize(("img_size", "expected"), [(None, (224, 224)), ((63, 100), (63, 100))], ids=str)
def test_random_weights_of_a_size(img_size, expected):
    model, title = load_pyramid("linear_pyramid_pico", img_size, pretrained=False)
    assert (model.img_size, title) == (expected, "linear_pyramid_pico, random weights")
