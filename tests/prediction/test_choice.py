"""Which predictor is loaded, and mistakes in the choice."""

from pathlib import Path

import pytest

from soft_vit.engine.errors import UserError
from soft_vit.prediction import load_predictor

DEMO = Path(__file__).parents[2] / "configs" / "demo" / "soft_pico_shapes.py"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, UserError, "Neither of a model and a config"),
        ({"model": "test_vit", "config": DEMO}, UserError, "Both of a model and a config"),
        ({"config": DEMO}, UserError, "give a file of them with --checkpoint"),
        ({"config": DEMO, "checkpoint": "none.pth"}, FileNotFoundError, "There is no checkpoint none.pth"),
        ({"config": "none.py", "checkpoint": "none.pth"}, FileNotFoundError, "There is no config none.py"),
        ({"model": "resnet_50"}, UserError, "timm has no model 'resnet_50'; did you mean resnet50"),
        ({"model": "zzzzzz"}, UserError, "choose a name of timm.list_models"),
        ({"model": "soft_norm_pico"}, UserError, "No pretrained weights exist for soft_norm_pico"),
        ({"model": "soft_tiny", "checkpoint": "{checkpoint}"}, UserError, "soft_tiny|another model|widths"),
        ({"model": "test_vit", "checkpoint": "{checkpoint}"}, UserError, "belong to another model"),
        ({"model": "test_vit", "pretrained": False, "img_size": 7}, UserError, "images of 7 x 7"),
        ({"model": "test_vit", "pretrained": False, "img_size": 0}, UserError, "img_size is 0"),
        ({"model": "test_vit", "pretrained": False, "topk": 0}, UserError, "topk is 0"),
        ({"model": "test_vit", "pretrained": False, "score_thr": 1.5}, UserError, "score_thr is 1.5"),
        ({"model": "test_vit", "pretrained": False, "device": "gpu"}, UserError, "There is no device 'gpu'"),
        ({"model": "test_vit", "options": {"a": 1}}, UserError, "test_vit has no config"),
        (
            {"config": DEMO, "checkpoint": "{checkpoint}", "options": {"model.model_name": "soft_tiny"}},
            UserError,
            "widths|another model",
        ),
        ({"config": DEMO, "checkpoint": "{checkpoint}", "options": {"model.num_classes": 7}}, UserError, "head.weight"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_mistake_is_one_sentence(ten_classes, arguments, error, message):
    given = {key: str(ten_classes) if value == "{checkpoint}" else value for key, value in arguments.items()}
    with pytest.raises(error, match=message) as caught:
        load_predictor(**given)
    assert "\n" not in str(caught.value)
