"""One sentence for each mistake in the name of a timm model, whoever makes the model of it."""

from functools import partial

import pytest
import timm
from mmengine.runner import CheckpointLoader
from timm.models import save_for_hf

from soft_vit.engine.models.timm_model import create_timm_model
from soft_vit.predict import TimmPredictor

MISTAKES = [
    ("resnet_50", "timm has no model 'resnet_50'; did you mean resnet50"),
    ("zzzzzz", "timm has no model 'zzzzzz'; choose a name of timm.list_models"),
    ("a/b", "timm has no model 'a/b'; choose"),
    ("soft_norm_pico", "No pretrained weights exist for soft_norm_pico; choose"),
    (
        "test_vit.no_tag",
        r"timm gives no weights for 'test_vit.no_tag' \(Invalid pretrained tag .*; choose a name of "
        r"timm.list_pretrained\(\), or give the path of a file of weights\.",
    ),
    ("local-dir:no/folder", r"timm gives no weights for 'local-dir:no/folder' \("),
    ("ftp:a", r"timm gives no weights for 'ftp:a' \(Unknown model source"),
]


@pytest.mark.parametrize(("name", "message"), MISTAKES)
def test_a_mistake_reads_the_same_everywhere(name, message):
    sentences = set()
    for load in (
        partial(create_timm_model, name, pretrained=True),
        partial(TimmPredictor, name),
        partial(CheckpointLoader.load_checkpoint, f"timm://{name}"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            load()
        sentences.add(str(caught.value))
    assert len(sentences) == 1
    assert "\n" not in sentences.pop()


def test_random_weights_need_no_file():
    assert create_timm_model("test_resnet.r160_in1k", pretrained=False).num_classes == 1000
    with pytest.raises(ValueError, match=r"no model 'test_vit.no_tag' .*; choose a name of timm.list_models\(\)\.$"):
        create_timm_model("test_vit.no_tag", pretrained=False)


def test_model_in_a_folder(tmp_path):
    save_for_hf(timm.create_model("test_resnet", num_classes=5), str(tmp_path), model_config=dict(num_classes=5))
    assert create_timm_model(f"local-dir:{tmp_path}", pretrained=True).num_classes == 5
