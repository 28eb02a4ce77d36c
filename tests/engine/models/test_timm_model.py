"""One sentence for each mistake in the name of a timm model, whoever makes the model of it."""

from functools import partial

import pytest
import timm
from engine.runs import assert_same
from mmengine.runner import CheckpointLoader
from timm.models import save_for_hf

from soft_vit.engine.models.timm_model import create_timm_model
from soft_vit.predict import TimmPredictor


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("resnet_50", "did you mean resnet50"),
        ("soft_norm_pico", "soft_norm_pico"),
        ("test_vit.no_tag", "no_tag"),
        ("local-dir:no/folder", "no/folder"),
    ],
)
def test_a_mistake_reads_the_same_everywhere(name, named):
    sentences = set()
    for load in (
        partial(create_timm_model, name, pretrained=True),
        partial(TimmPredictor, name),
        partial(CheckpointLoader.load_checkpoint, f"timm://{name}"),
    ):
        with pytest.raises(ValueError, match=named) as caught:
            load()
        sentences.add(str(caught.value))
    assert len(sentences) == 1


def test_model_in_a_folder(tmp_path):
    model = timm.create_model("test_resnet", num_classes=5)
    save_for_hf(model, str(tmp_path), model_config=dict(num_classes=5))
    loaded = CheckpointLoader.load_checkpoint(f"timm://local-dir:{tmp_path}", map_location="cpu")["state_dict"]
    assert_same(loaded, model.state_dict())
