"""Classes of the tested data are those of the training, by name."""

import json
import logging
from types import SimpleNamespace

import pytest
import torch
from mmengine.evaluator import Evaluator
from mmengine.structures import InstanceData

from soft_vit.data.demo.trees import make_tree
from soft_vit.dense.class_names import ClassNamesHook
from soft_vit.dense.detection import CocoAP, CocoImages
from soft_vit.engine.hooks.checks import RunChecksHook


def in_a_test(trained, dataset, evaluator) -> None:
    """The hook's part in a test of a checkpoint that names its classes."""
    hook = ClassNamesHook()
    evaluator.dataset_meta = dataset.metainfo
    hook.after_load_checkpoint(None, {"meta": {"dataset_meta": {"classes": trained}}})
    hook.before_test(SimpleNamespace(test_dataloader=SimpleNamespace(dataset=dataset), test_evaluator=evaluator))


def in_training(trained, dataset, evaluator) -> None:
    """The hooks' part in the validation of a training run."""
    evaluator.dataset_meta = dataset.metainfo
    RunChecksHook().before_train(
        SimpleNamespace(
            train_dataloader=SimpleNamespace(dataset=SimpleNamespace(metainfo={"classes": trained})),
            val_dataloader=SimpleNamespace(dataset=dataset),
            val_evaluator=evaluator,
            val_loop=True,
            model=None,
            param_schedulers=None,
            logger=logging.getLogger(),
        )
    )


@pytest.fixture(params=[in_a_test, in_training])
def evaluated(request):
    return request.param


@pytest.fixture
def perfect(tmp_path, evaluated):
    """A function: the AP of perfect detections, numbered as trained, on a file whose categories a change has edited."""
    make_tree(tmp_path / "coco", "coco", train=1, val=8, size=96, seed=3)
    path = tmp_path / "coco" / "annotations" / "instances_val2017.json"
    content = json.loads(path.read_text())
    trained = [category["name"] for category in content["categories"]]

    def measure(change) -> float:
        change(content["categories"], content["annotations"])
        path.write_text(json.dumps(content))
        data = CocoImages(str(tmp_path / "coco"), "annotations/instances_val2017.json", "val2017", test_mode=True)
        metric = CocoAP()
        evaluated(trained, data, Evaluator(metric))
        name_of = {category["id"]: category["name"] for category in content["categories"]}
        for index in range(len(data)):
            sample = data[index]["data_samples"]
            boxes = torch.tensor([entry["bbox"] for entry in sample.objects], dtype=torch.float32).reshape(-1, 4)
            boxes[:, 2:] += boxes[:, :2]
            labels = torch.tensor([trained.index(name_of[entry["category_id"]]) for entry in sample.objects]).long()
            sample.pred_instances = InstanceData(bboxes=boxes, labels=labels, scores=torch.ones(len(labels)))
            metric.process({}, [sample.to_dict()])
        return metric.evaluate(len(data))["coco/bbox_mAP"]

    return measure


def lack_the_first_category(categories, annotations) -> None:
    number = categories.pop(0)["id"]
    annotations[:] = [entry for entry in annotations if entry["category_id"] != number]


def number_the_other_way(categories, annotations) -> None:
    other = {category["id"]: 100 - category["id"] for category in categories}
    for entry in categories:
        entry["id"] = other[entry["id"]]
    for entry in annotations:
        entry["category_id"] = other[entry["category_id"]]


@pytest.mark.parametrize("change", [lambda *_: None, lack_the_first_category, number_the_other_way])
def test_perfect_detections_have_an_ap_of_one(perfect, change):
    assert perfect(change) == pytest.approx(1.0)


def test_a_category_that_was_not_trained_is_refused(perfect):
    def rename(categories, annotations) -> None:
        categories[0]["name"] = "blob"

    with pytest.raises(ValueError, match="'blob'"):
        perfect(rename)


@pytest.mark.parametrize("given", [("b", "a"), ("a",)])
def test_label_maps_have_the_trained_order(evaluated, given):
    dataset = SimpleNamespace(metainfo={"classes": given})
    with pytest.raises(ValueError, match="other classes"):
        evaluated(["a", "b"], dataset, SimpleNamespace())
    evaluated(["a", "b"], SimpleNamespace(metainfo={"classes": ("a", "b")}), SimpleNamespace())
    evaluated(None, dataset, SimpleNamespace())
