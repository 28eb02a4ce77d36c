"""RAVLT and MAViT: twins that a head tells apart, maps of any size, and where softmax is."""

import pytest
import timm
import torch
from models.zoo.families import SMALL
from models.zoo.generated import images, released_state_dict, shapes
from torch import nn

from soft_vit.models import checkpoint_filter_fn
from soft_vit.models.ravlt import RAVLT
from studies.softmax import SoftmaxCalls

TWINS = {"ravlt_t": "mavit_t", "mavit_t": "ravlt_t"}


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_refused_where_no_head_tells_them_apart(name: str) -> None:
    """Nor the layer before the head, by which alone their files differ: timm drops it from what is built here."""
    other = {key: torch.zeros(shape) for key, shape in shapes(TWINS[name][:5], TWINS[name]).items()}
    for options in ({"features_only": True}, {"num_classes": 0}):
        overlay = {"state_dict": {"model": other, "epoch": 3}}
        with pytest.raises(ValueError, match=f"do not fit {name}"):
            timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **options)


def test_released_weights_go_there_and_back() -> None:
    """Layers of tokens are convolutions of one pixel there, and the frequencies of each stage are saved."""
    released = released_state_dict("ravlt", "ravlt_b")
    model = timm.create_model("ravlt_b", device="meta")
    again = model.released_state_dict(checkpoint_filter_fn(released, model))
    assert again.keys() == released.keys()
    for name, value in released.items():
        if name.endswith("RoPE.angle"):
            count = len(value) // 2
            expected = [10000 ** (-t / (count - 1)) for t in range(count) for _ in range(2)]
            assert again[name].tolist() == pytest.approx(expected)
        else:
            assert torch.equal(again[name], value), name


def small(name: str = "ravlt_t", **options) -> RAVLT:
    return timm.create_model(name, **{**SMALL[name[:5]][1], "num_classes": 7, **options}).eval()


def test_each_halving_rounds_a_side_up() -> None:
    for size, maps in {
        (230, 150): [(58, 38), (29, 19), (15, 10), (8, 5)],
        (32, 33): [(8, 9), (4, 5), (2, 3), (1, 2)],
    }.items():
        with torch.no_grad():
            features = small().forward_intermediates(images(1, *size), intermediates_only=True)
        assert [tuple(feature.shape[2:]) for feature in features] == maps


def test_the_layer_before_the_head_goes_with_it() -> None:
    """The head knows the channels of that layer alone, so neither stays without the other."""
    model = small()
    with torch.no_grad():
        expected = model.forward_intermediates(images(1, 64, 64), norm=True)[1][-1]
        assert model.prune_intermediate_layers([3], prune_norm=True, prune_head=False) == [3]
        assert torch.equal(model(images(1, 64, 64)), expected)
    assert isinstance(model.head, nn.Identity)


@pytest.mark.parametrize("name", TWINS)
def test_softmax_is_where_it_is_said_to_be(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over one row of keys in RAVLT's first two stages, over all pairs of tokens in the last two of both."""
    monkeypatch.setattr(timm.layers.config, "_USE_FUSED_ATTN", 0)
    with torch.no_grad(), SoftmaxCalls() as calls:
        small(name)(images(1, 64, 64))
    found = [(call.rows, call.length) for call in calls.found]
    assert found == [(1, 256), (1, 64)] * (name == "ravlt_t") + [(16, 16), (4, 4)]
