"""Names of models and sizes, what they stand for, and the names that a mistake is answered with."""

import importlib.util
from pathlib import Path

import pytest
import timm
import torch

from soft_vit.models import PYRAMID_MODELS, model_name

# Published counts, 24.11 M for small, add up parameters and BatchNorm's buffers: the whole state dict.
STATE_SIZES = {
    "tiny": 13_071_238,
    "small": 24_112_274,
    "base": 38_860_644,
    "medium": 45_814_825,
    "large": 64_702_828,
    "huge": 87_110_519,
}


@pytest.mark.parametrize(("size", "count"), STATE_SIZES.items())
def test_size_of_the_state(size, count):
    model = timm.create_model(f"soft_norm_{size}", device="meta")
    assert sum(value.numel() for value in model.state_dict().values()) == count


def test_torch_hub():
    root = str(Path(__file__).parents[2])
    assert torch.hub.load(root, "soft_pico", source="local", num_classes=5).num_classes == 5
    spec = importlib.util.spec_from_file_location("hubconf", f"{root}/hubconf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    listed = {name for name in dir(module) if callable(getattr(module, name)) and not name.startswith("_")}
    assert set(PYRAMID_MODELS) < listed < set(timm.list_models())


def test_names_of_models():
    assert set(PYRAMID_MODELS) == set(timm.list_models(module="pyramid"))
    assert model_name("soft_norm", "tiny") == "soft_norm_tiny"
    assert model_name("linformer", "pico") == "linformer_pyramid_pico"
    for attention, size, named in (("linformer", "huge", "huge"), ("perfomer", "tiny", "performer")):
        with pytest.raises(ValueError, match=named):
            model_name(attention, size)
