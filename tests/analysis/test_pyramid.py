"""Pyramids by name: with which weights, and what is said of them."""

import pytest
import timm
import torch

from soft_vit.analysis.pyramid import load_pyramid
from soft_vit.weights import WeightsError


def same_weights(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    weights = second.state_dict()
    return all(torch.equal(value, weights[name]) for name, value in first.state_dict().items())


@pytest.mark.parametrize("name", ["soft_pico", "soft_pico.shapes"])
def test_recorded_weights(name):
    model, title = load_pyramid(name)
    assert title == "soft_pico.shapes, pretrained"
    assert not model.training
    assert same_weights(model, timm.create_model("soft_pico.shapes", pretrained=True))


@pytest.mark.parametrize("name", ["soft_pico", "soft_pico.shapes"])
def test_weights_of_a_file(name, tmp_path):
    source = timm.create_model("soft_pico", img_size=64)
    torch.save(source.state_dict(), tmp_path / "epoch_5.pth")
    model, title = load_pyramid(name, (64, 64), checkpoint=tmp_path / "epoch_5.pth")
    assert title == "soft_pico, epoch_5.pth"
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(model.forward_features(x), source.eval().forward_features(x), rtol=0, atol=0)


@pytest.mark.parametrize(("img_size", "expected"), [(None, (224, 224)), ((63, 100), (63, 100))], ids=str)
def test_random_weights_of_a_size(img_size, expected):
    model, title = load_pyramid("linear_pyramid_pico", img_size, pretrained=False)
    assert (model.img_size, title) == (expected, "linear_pyramid_pico, random weights")


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("resnet18", {}, ValueError, "resnet18 is not a pyramid"),
        ("soft_pico.none", {}, ValueError, "soft_pico.none is not a pyramid"),
        ("soft_pico", {"checkpoint": "none.pth"}, FileNotFoundError, "no checkpoint none.pth"),
        ("soft_norm_pico", {}, WeightsError, "No pretrained weights exist for soft_norm_pico"),
        ("soft_pico", {"device": "gpu"}, ValueError, "There is no device 'gpu' here"),
        ("soft_pico", {"device": "cuda:99"}, ValueError, "There is no device 'cuda:99' here"),
    ],
)
def test_mistake_is_one_sentence(name, options, error, message):
    with pytest.raises(error, match=message) as caught:
        load_pyramid(name, **options)
    assert "\n" not in str(caught.value)
