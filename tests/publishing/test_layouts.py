"""Bytes of safetensors: the same each time, with the model noted in them."""

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load

from soft_vit.models.check import describe_file
from soft_vit.models.recognition import named_attention
from soft_vit.models.weight_files import read_checkpoint_file
from soft_vit.publishing import convert
from soft_vit.publishing.layouts import safetensors_bytes
from soft_vit.publishing.trained_file import read_trained_file

WEIGHTS = {"odd": torch.arange(3, dtype=torch.uint8), "b": torch.randn(5, 3).mT, "number": torch.tensor(2)}


@pytest.mark.parametrize("model", [None, "soft_norm_pico"])
def test_tensors_come_back(model, tmp_path):
    data = safetensors_bytes(WEIGHTS, model)
    (tmp_path / "a.safetensors").write_bytes(data)
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"} | ({"model": model} if model else {})
    read = load(data)
    assert read.keys() == WEIGHTS.keys()
    assert all(read[name].dtype == value.dtype and torch.equal(read[name], value) for name, value in WEIGHTS.items())


def test_the_same_bytes_each_time():
    """Safetensors writes two entries of metadata in an order that is drawn anew."""
    assert len({safetensors_bytes(WEIGHTS, "soft_pico") for _ in range(20)}) == 1


@pytest.mark.parametrize(
    ("model", "attention"), [("soft_pico", "soft"), ("soft_norm_pico", "soft_norm"), (None, None)], ids=str
)
def test_own_files_say_of_which_attention_they_are(model, attention, averaged, tmp_path):
    torch.save(averaged, tmp_path / "a.pth")
    path = tmp_path / "a.safetensors"
    convert(tmp_path / "a.pth", path, "safetensors", model=model)
    assert named_attention(read_checkpoint_file(path)) == attention
    assert read_trained_file(path).model == model
    assert any(f"It was trained as {model}" in line for line in describe_file(path)) == (model is not None)
    for other in ("soft", "soft_norm"):
        create = dict(model_name=f"{other}_pico", pretrained=True, pretrained_cfg_overlay={"file": str(path)})
        if attention in (None, other):
            timm.create_model(**create, num_classes=10)
        else:
            with pytest.raises(ValueError, match=f"{model}, by what is noted in it.*{other}_pico has the attention"):
                timm.create_model(**create, num_classes=10)
