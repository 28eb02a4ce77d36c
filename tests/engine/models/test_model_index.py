"""mmpretrain finds the recorded weights by name."""

import mmpretrain
import pytest
import timm
from engine.runs import assert_same
from mmpretrain.apis.model import ModelHub
from PIL import Image

from soft_vit.engine.models import model_index
from soft_vit.weights import ENTRIES


def test_get_model():
    # Again, after importing the engine did.
    model_index.register_models()
    assert {name for name, entry in ENTRIES.items() if entry.config} <= set(mmpretrain.list_models())
    found = mmpretrain.get_model("soft_pico.shapes", pretrained=True)
    assert_same(found.model.state_dict(), timm.create_model("soft_pico.shapes", pretrained=True).state_dict())
    assert found._dataset_meta["classes"][0] == "circle"
    assert found._metainfo.results[0].metrics == {"Top 1 Accuracy": 97.3}


def test_inferencers_show_the_model_rgb(tmp_path):
    Image.new("RGB", (64, 64), (255, 128, 0)).save(tmp_path / "orange.png")
    inferencer = mmpretrain.ImageClassificationInferencer(mmpretrain.get_model("soft_tiny.fudan_in1k"))
    (batch,) = inferencer.preprocess([str(tmp_path / "orange.png")])
    assert batch["inputs"][0, :, 9, 9].tolist() == [255, 128, 0]


@pytest.mark.parametrize("theirs", [False, True])
def test_metafile_that_is_missing_or_of_another_project(tmp_path, monkeypatch, theirs):
    """Of a package that is copied without its files."""
    monkeypatch.setattr(model_index, "RESOURCES", tmp_path)
    monkeypatch.setattr(ModelHub, "_models_dict", {})
    if theirs:
        monkeypatch.setattr(model_index, "ENTRIES", {})
        (tmp_path / "model-index.yml").write_text("Models:\n- Name: theirs\n  Config: theirs.py\n")
    model_index.register_models()
    assert not ModelHub._models_dict
