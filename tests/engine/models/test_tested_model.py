"""A tested model, held against its weights and its images."""

from types import SimpleNamespace

import pytest
import timm
import torch

from soft_vit.data import CLASSES
from soft_vit.engine.models import tested_model
from soft_vit.weights.read import NOTES_KEY


@pytest.mark.parametrize("noted", [True, False])
def test_weights_of_another_image_size_are_resampled(noted):
    options = dict(num_classes=3, depths=(1, 1, 1, 1))
    trained, model = timm.create_model("soft_pico", img_size=32, **options), timm.create_model("soft_pico", **options)
    meta = {NOTES_KEY: {"model": "soft_pico", "options": {"img_size": [32, 32]}}} if noted else {}
    checkpoint = {"state_dict": dict(trained.state_dict()), "meta": meta}
    runner = SimpleNamespace(model=SimpleNamespace(model=model, state_dict=model.state_dict), cfg={})
    tested_model.TestedModelHook().after_load_checkpoint(runner, checkpoint)
    trained.set_input_size((224, 224))
    for name, value in trained.state_dict().items():
        assert torch.equal(checkpoint["state_dict"][name], value), name


@pytest.mark.parametrize(("own", "same_classes"), [(9, False), (9, True), (11, True)])
def test_classes_that_are_not_the_models(own, same_classes):
    model = SimpleNamespace(model=SimpleNamespace(num_classes=own))
    dataset = SimpleNamespace(metainfo={"classes": CLASSES})
    runner = SimpleNamespace(model=model, test_dataloader=SimpleNamespace(dataset=dataset))
    with pytest.raises(ValueError, match=f"tells {own} classes apart and the test images have 10"):
        tested_model.TestedModelHook(same_classes=same_classes).before_test(runner)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"global_pool": "avg", "max_bottleneck": (7, 7)}, []),
        ({"global_pool": "avg", "img_size": 96}, ["max_bottleneck=[7, 7]"]),
        ({"max_bottleneck": [7, 7], "inverse": "eigh"}, ["global_pool='avg'", "its default inverse"]),
    ],
)
def test_options_that_differ_from_the_training_are_said(own, said):
    options = {"global_pool": "avg", "max_bottleneck": [7, 7], "img_size": [64, 64]}
    checkpoint = {"meta": {NOTES_KEY: {"model": "soft_pico", "options": options}}}
    model = {"model_name": "soft_pico", "num_classes": 10, "drop_path_rate": 0.1, **own}
    found = tested_model.changed_options(checkpoint, {"model": model})
    assert len(found) == len(said)
    assert all(text in sentence for text, sentence in zip(said, found, strict=True))
    assert tested_model.changed_options({"meta": {}}, {"model": model}) == []
