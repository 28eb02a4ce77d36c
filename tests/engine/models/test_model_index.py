"""mmpretrain finds the recorded weights by name."""

import shutil

import mmpretrain
import timm
from engine.runs import assert_same
from mmpretrain.apis.model import ModelHub
from PIL import Image

from soft_vit.engine.models import model_index
from soft_vit.weights import ENTRIES
from soft_vit.weights.files import RESOURCES

RECORDED = sorted(name for name, entry in ENTRIES.items() if entry.config is not None)


def test_get_model():
    assert set(RECORDED) <= set(mmpretrain.list_models())
    found = mmpretrain.get_model("soft_pico.shapes", pretrained=True)
    assert_same(found.model.state_dict(), timm.create_model("soft_pico.shapes", pretrained=True).state_dict())
    assert found._dataset_meta["classes"][0] == "circle"
    assert found._metainfo.results[0].metrics == {"Top 1 Accuracy": 97.3}


def test_inferencers_show_the_model_rgb(tmp_path):
    Image.new("RGB", (64, 64), (255, 128, 0)).save(tmp_path / "orange.png")
    inferencer = mmpretrain.ImageClassificationInferencer(mmpretrain.get_model("soft_tiny.fudan_in1k"))
    (batch,) = inferencer.preprocess([str(tmp_path / "orange.png")])
    assert batch["inputs"][0, :, 9, 9].tolist() == [255, 128, 0]


def test_metafiles_that_are_missing_or_of_another_project(tmp_path, monkeypatch):
    """Configs are found next to the metafile."""
    monkeypatch.setattr(model_index, "RESOURCES", tmp_path)
    monkeypatch.setattr(ModelHub, "_models_dict", {})
    model_index.register_models()
    assert not ModelHub._models_dict
    shutil.copy(RESOURCES / "model-index.yml", tmp_path)
    for _ in range(2):
        model_index.register_models()
    assert sorted(ModelHub._models_dict) == RECORDED
    assert ModelHub._models_dict["soft_pico.shapes"].config == str(tmp_path / "configs/demo/soft_pico_shapes.py")
    ModelHub._models_dict.clear()
    # A package that is copied without its files.
    monkeypatch.setattr(model_index, "ENTRIES", {})
    (tmp_path / "model-index.yml").write_text("Models:\n- Name: theirs\n  Config: theirs.py\n")
    model_index.register_models()
    assert not ModelHub._models_dict
