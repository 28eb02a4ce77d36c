"""Files of safetensors: equal bytes each time, with notes of the model."""

from contextlib import nullcontext

import pytest
import timm
import torch

from soft_vit.models.identify import describe_file
from soft_vit.weights.read import Notes, load_weights
from soft_vit.weights.save import convert, read_trained_file, safetensors_bytes

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
    """The safetensors library writes metadata in random order."""
    assert len({safetensors_bytes(WEIGHTS, Notes("soft_pico", {"a": 1})) for _ in range(20)}) == 1


@pytest.mark.parametrize("model", ["soft_pico", "soft_norm_pico"])
def test_own_files_note_their_model(model, averaged, tmp_path):
    torch.save(averaged, tmp_path / "a.pth")
    path = tmp_path / "a.safetensors"
    convert(tmp_path / "a.pth", path, "safetensors", model=model)
    assert read_trained_file(path).model == model
    assert "Its notes name the model." in describe_file(path)
    for name in ("soft_pico", "soft_norm_pico"):
        create = dict(pretrained=True, pretrained_cfg_overlay={"file": str(path)}, num_classes=10)
        with nullcontext() if name == model else pytest.raises(ValueError, match="attention must be"):
            timm.create_model(name, **create)
