"""mmpretrain finds the recorded weights by name."""

import mmpretrain
import timm
from engine.runs import assert_same
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
