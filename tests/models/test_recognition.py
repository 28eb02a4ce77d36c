"""What a file says of the model that it belongs to."""

from argparse import Namespace

import pytest
import timm
import torch
from released import released_shapes

from soft_vit.models.recognition import named_attention, recognise
from soft_vit.models.variants import SIZES
from soft_vit.models.weight_files import read_checkpoint_file, state_dict_of


@pytest.mark.parametrize("size", SIZES)
def test_every_size(size):
    weights = timm.create_model(f"soft_norm_{size}", device="meta").state_dict()
    found = recognise(weights)
    assert found.size == size
    assert size in str(found)


def test_an_unnamed_size():
    found = recognise(timm.create_model("soft_pico", depths=(1, 2, 2, 1), device="meta").state_dict())
    assert found.size is None
    assert str(found) == "an unnamed size with depths 1 2 2 1 and widths 32 64 128 160"


@pytest.mark.parametrize("weights", [{"a": torch.ones(1)}, {"stages.0.blocks.0.norm.weight": torch.ones(1)}])
def test_no_pyramid(weights):
    with pytest.raises(ValueError, match="not of a soft_vit pyramid"):
        recognise(weights)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"arch": "soft_norm_small"}, "soft_norm"),
        ({"arch": "soft_tiny"}, "soft"),
        ({"arch": "softmaxfreevisiontransformer"}, None),
        ({"arch": 3}, None),
        ({"args": Namespace(model="soft_norm_tiny")}, "soft_norm"),
        ({"meta": {"cfg": "model = dict(model_name='soft_norm_pico', num_classes=10)"}}, "soft_norm"),
        ({"meta": {"cfg": "model = dict(model_name='linformer_pyramid_tiny')"}}, None),
        ({"meta": {}}, None),
        ({}, None),
        ([], None),
    ],
    ids=str,
)
def test_noted_attention(content, expected):
    assert named_attention(content) == expected


def test_checkpoints_with_the_options_of_their_training_are_read(tmp_path):
    """The released training loop puts an argparse.Namespace into its checkpoints."""
    weights = {name: torch.zeros(()).expand(shape) for name, shape in released_shapes().items()}
    content = {"arch": "soft_norm_tiny", "state_dict": weights, "args": Namespace(lr=1e-3, aa=None)}
    torch.save(content, tmp_path / "file.pth")
    read = read_checkpoint_file(tmp_path / "file.pth")
    assert read["args"] == content["args"]
    assert recognise(state_dict_of(read)).size == "tiny"
    with pytest.raises(ValueError, match=r"soft_norm_tiny, by what is noted.*soft_tiny has the attention 'soft'"):
        timm.create_model("soft_tiny", pretrained=True, pretrained_cfg_overlay={"file": str(tmp_path / "file.pth")})
