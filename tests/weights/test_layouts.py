"""Files of safetensors: equal bytes each time, with notes of the model."""

import pytest
import torch

from soft_vit.weights.read import Notes, load_weights
from soft_vit.weights.save import safetensors_bytes

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
