"""Configs of detectors and segmentors, and the classes of a test by name."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import timm
import torch
from engine.runs import CONFIGS
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DATASETS, MODELS

from soft_vit.data.demo.trees import make_tree
from soft_vit.dense.class_names import ClassNamesHook
from soft_vit.dense.detection import CocoImages
from soft_vit.engine.config import resolve
from soft_vit.engine.evaluate import _match_classes
from soft_vit.weights.spec import ModelSpec

# The configs of detectors and segmentors: what they name is known, schedules and sizes are as published.


PATHS = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * ("small_fpn" in path.stem or "large" in path.stem))
    for folder in ("detection", "segmentation")
    for path in sorted((CONFIGS / folder).glob("*.py"))
]
# Millions of parameters (arXiv 2207.03341). The paper does not describe UPerNet's auxiliary head; with that of mmseg, a
# convolution of 256 channels on the third map, and its 512 channels the counts agree.
COCO = {"tiny": (23, 33), "small": (34, 44), "medium": (55, 65), "large": (74, 84)}
PUBLISHED = {
    **{f"retinanet_soft_norm_{size}_fpn_1x_coco": counts[0] for size, counts in COCO.items()},
    **{f"mask_rcnn_soft_norm_{size}_fpn_1x_coco": counts[1] for size, counts in COCO.items()},
    "upernet_soft_norm_small_512_ade20k": 54,
    "upernet_soft_norm_medium_512_ade20k": 76,
}


@pytest.mark.parametrize("path", PATHS)
def test_parts_are_known_and_parameters_as_many_as_published(path):
    cfg = resolve(path)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        assert DATASETS.get(loader.dataset.type) is not None
        Compose(loader.dataset.get("pipeline", []))
    if path.stem.startswith("efficientvit"):
        # The released model has a head for as many classes.
        whole = timm.create_model(cfg.model.backbone.model_name, num_classes=cfg.model.num_classes, device="meta")
        PUBLISHED[path.stem] = sum(parameter.numel() for parameter in whole.parameters()) / 1e6
    else:
        assert cfg.model.backbone.max_bottleneck == (7, 7)
    # Without the time and memory of initialising.
    with torch.device("meta"):
        # Some configs count the classes in the data.
        model = MODELS.build({**cfg.model, "num_classes": cfg.model.num_classes or 2, "data_preprocessor": None})
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == pytest.approx(1e6 * PUBLISHED.get(path.stem, count / 1e6), rel=0.03)
    if "1x_coco" in path.stem:
        # The published schedule, on eight processes.
        warmup, steps = cfg.param_scheduler
        assert (cfg.train_cfg.max_epochs, warmup.end, steps.milestones) == (12, 500, [8, 11])
        assert cfg.optim_wrapper.optimizer == {"type": "AdamW", "lr": 1e-4, "weight_decay": 1e-4}
        assert cfg.train_dataloader.batch_size * 8 == cfg.auto_scale_lr.base_batch_size == 16


# Classes of the tested data are those of the training, by name.


def evaluate_as_trained(trained, dataset) -> dict:
    """What a test does with the classes that its checkpoint names."""
    runner = SimpleNamespace(test_dataloader=SimpleNamespace(dataset=dataset), test_evaluator=SimpleNamespace())
    runner.cfg = Config({"model": {"num_classes": len(trained)}})
    _match_classes(runner, ModelSpec().with_classes(trained, False))
    return runner.test_evaluator.dataset_meta


@pytest.mark.parametrize("owner", ["model", "head"])
@pytest.mark.parametrize(("outputs", "classes", "fits"), [(4, 4, True), (10, 4, False), (3, 4, False), (4, None, True)])
def test_a_model_trains_with_the_classes_of_its_data(outputs, classes, fits, owner):
    """A detector has `num_classes` itself, a segmentor in its head."""
    counted = SimpleNamespace(num_classes=outputs)
    metainfo = {} if classes is None else {"classes": tuple(map(str, range(classes)))}
    loader = SimpleNamespace(dataset=SimpleNamespace(metainfo=metainfo))
    run = SimpleNamespace(train_dataloader=loader, model=counted if owner == "model" else SimpleNamespace(head=counted))
    with nullcontext() if fits else pytest.raises(ValueError, match=f"num_classes must be 4 .* {outputs}"):
        ClassNamesHook().before_train(run)


def test_categories_are_those_of_the_training_by_name(tmp_path):
    """The tested data lack a category, and number the others the other way."""
    make_tree(tmp_path / "coco", "coco", train=1, val=8, size=96, seed=3)
    path = tmp_path / "coco/annotations/instances_val2017.json"
    content = json.loads(path.read_text())
    trained = [category["name"] for category in content["categories"]]
    gone = content["categories"].pop(0)["id"]
    content["annotations"] = [entry for entry in content["annotations"] if entry["category_id"] != gone]
    for key, entries in (("id", content["categories"]), ("category_id", content["annotations"])):
        for entry in entries:
            entry[key] = 100 - entry[key]
    path.write_text(json.dumps(content))
    data = CocoImages(str(tmp_path / "coco"), path, "val2017", test_mode=True)
    meta = evaluate_as_trained(trained, data)
    assert meta["classes"] == tuple(trained)
    numbers = dict(zip(meta["classes"], meta["category_ids"], strict=True))
    assert len(set(numbers.values())) == len(trained)
    assert {category["name"]: category["id"] for category in content["categories"]}.items() <= numbers.items()
    with pytest.raises(ValueError, match="'arrow'"):
        evaluate_as_trained(trained[:-1], data)
