"""mmpretrain finds the recorded weights by name."""

import mmpretrain
import pytest
import timm
import torch

from soft_vit.engine.model_index import register_models
from soft_vit.models.pretrained import ENTRIES


@pytest.fixture(autouse=True)
def registered():
    register_models()
    # A second time changes nothing.
    register_models()


def test_list_models():
    assert mmpretrain.list_models("soft_") == sorted(ENTRIES)


def test_get_model():
    found = mmpretrain.get_model("soft_pico.shapes", pretrained=True)
    expected = timm.create_model("soft_pico.shapes", pretrained=True).state_dict()
    assert found.model.state_dict().keys() == expected.keys()
    for name, value in found.model.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=0, msg=name)
    assert found._dataset_meta["classes"][0] == "circle"
    assert found._metainfo.results[0].metrics == {"Top 1 Accuracy": 97.7}
