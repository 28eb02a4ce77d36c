"""Timm models by name, from a folder, and mistakes in the name, whoever makes the model of it."""

from functools import partial

import pytest
import timm
from engine.runs import assert_same
from mmengine.runner import CheckpointLoader
from timm.models import save_for_hf

from soft_vit.engine.models.timm_model import create_timm_model
from soft_vit.predict import TimmPredictor


@pytest.mark.parametrize(
    ("load", "name", "named"),
    [
        (partial(create_timm_model, pretrained=True), "resnet_50", "did you mean resnet50"),
        (TimmPredictor, "soft_norm_pico", "soft_norm_pico"),
        (TimmPredictor, "test_vit.no_tag", "no_tag"),
        (CheckpointLoader.load_checkpoint, "timm://local-dir:no/folder", "no/folder"),
    ],
)
def test_mistakes(load, name, named):
    with pytest.raises(ValueError, match=named):
        load(name)


def test_model_in_a_folder(tmp_path):
    model = timm.create_model("test_resnet", num_classes=5)
    save_for_hf(model, str(tmp_path), model_config=dict(num_classes=5))
    loaded = CheckpointLoader.load_checkpoint(f"timm://local-dir:{tmp_path}", map_location="cpu")["state_dict"]
    assert_same(loaded, model.state_dict())
