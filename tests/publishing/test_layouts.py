"""Bytes of safetensors: the same each time, with the model noted in them."""

import pytest
import timm
import torch

from soft_vit.models.check import describe_file
from soft_vit.models.checkpoint import noted_attention
from soft_vit.publishing import convert
from soft_vit.publishing.layouts import safetensors_bytes
from soft_vit.publishing.trained_file import read_trained_file
from soft_vit.weights.read import Notes, load_weights

WEIGHTS = {"odd": torch.arange(3, dtype=torch.uint8), "b": torch.randn(5, 3).mT, "number": torch.tensor(2)}


@pytest.mark.parametrize(
    "notes", [None, Notes("soft_norm_pico", {"inverse": "cholesky"}, {"mean": (0.5,), "std": (1,)})]
)
def test_tensors_and_notes_come_back(notes, tmp_path):
    data = safetensors_bytes(WEIGHTS, notes)
    (tmp_path / "a.safetensors").write_bytes(data)
    read = load_weights(tmp_path / "a.safetensors")
    assert read.keys() == WEIGHTS.keys()
    assert all(read[name].dtype == value.dtype and torch.equal(read[name], value) for name, value in WEIGHTS.items())
    assert read.notes == (notes or Notes())


def test_the_same_bytes_each_time():
    """Safetensors writes two entries of metadata in an order that is drawn anew."""
    assert len({safetensors_bytes(WEIGHTS, Notes("soft_pico", {"a": 1})) for _ in range(20)}) == 1


@pytest.mark.parametrize(
    ("model", "attention"), [("soft_pico", "soft"), ("soft_norm_pico", "soft_norm"), (None, None)], ids=str
)
def test_own_files_say_of_which_attention_they_are(model, attention, averaged, tmp_path):
    torch.save(averaged, tmp_path / "a.pth")
    path = tmp_path / "a.safetensors"
    convert(tmp_path / "a.pth", path, "safetensors", model=model)
    assert noted_attention(load_weights(path).notes) == attention
    assert read_trained_file(path).model == model
    assert any(f"It was trained as {model}" in line for line in describe_file(path)) == (model is not None)
    for other in ("soft", "soft_norm"):
        create = dict(model_name=f"{other}_pico", pretrained=True, pretrained_cfg_overlay={"file": str(path)})
        if attention in (None, other):
            timm.create_model(**create, num_classes=10)
        else:
            with pytest.raises(ValueError, match=f"{model}, by what is noted in it.*{other}_pico has the attention"):
                timm.create_model(**create, num_classes=10)
