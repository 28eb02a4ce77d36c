"""Classes of the tested data are those of the training, by name."""

import json
from types import SimpleNamespace

import pytest
import torch
from mmengine.evaluator import Evaluator
from mmengine.structures import InstanceData

from soft_vit.data.demo.trees import make_tree
from soft_vit.dense.class_names import ClassNamesHook
from soft_vit.dense.detection import CocoAP, CocoImages


def evaluate_as_trained(trained, dataset, evaluator=None) -> None:
    """The hook's part in a test of a checkpoint that names its classes."""
    hook = ClassNamesHook()
    hook.after_load_checkpoint(None, {"meta": {"dataset_meta": {"classes": trained}}})
    loader = SimpleNamespace(dataset=dataset)
    hook.before_test(SimpleNamespace(test_dataloader=loader, test_evaluator=evaluator or SimpleNamespace()))


def lack_the_first_category(content: dict) -> None:
    number = content["categories"].pop(0)["id"]
    content["annotations"] = [entry for entry in content["annotations"] if entry["category_id"] != number]


def number_the_other_way(content: dict) -> None:
    for entry in content["categories"]:
        entry["id"] = 100 - entry["id"]
    for entry in content["annotations"]:
        entry["category_id"] = 100 - entry["category_id"]


@pytest.fixture
def trained_and_data(tmp_path, request):
    """Names of the trained classes, and data whose categories the parameter has edited."""
    make_tree(tmp_path / "coco", "coco", train=1, val=8, size=96, seed=3)
    path = tmp_path / "coco" / "annotations" / "instances_val2017.json"
    content = json.loads(path.read_text())
    trained = [category["name"] for category in content["categories"]]
    request.param(content)
    path.write_text(json.dumps(content))
    return trained, CocoImages(str(tmp_path / "coco"), f"annotations/{path.name}", "val2017", test_mode=True)


@pytest.mark.parametrize(
    "trained_and_data", [lambda content: None, lack_the_first_category, number_the_other_way], indirect=True
)
def test_perfect_detections_have_an_ap_of_one(trained_and_data):
    trained, data = trained_and_data
    name_of = dict(zip(data.metainfo["category_ids"], data.metainfo["classes"], strict=True))
    metric = CocoAP()
    evaluate_as_trained(trained, data, Evaluator(metric))
    for sample in (data[index]["data_samples"] for index in range(len(data))):
        boxes = torch.tensor([entry["bbox"] for entry in sample.objects], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        labels = torch.tensor([trained.index(name_of[entry["category_id"]]) for entry in sample.objects]).long()
        sample.pred_instances = InstanceData(bboxes=boxes, labels=labels, scores=torch.ones(len(labels)))
        metric.process({}, [sample.to_dict()])
    assert metric.evaluate(len(data))["coco/bbox_mAP"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    "trained_and_data", [lambda content: content["categories"][0].update(name="blob")], indirect=True
)
def test_a_category_that_was_not_trained_is_refused(trained_and_data):
    with pytest.raises(ValueError, match="'blob'"):
        evaluate_as_trained(*trained_and_data)


@pytest.mark.parametrize("given", [("b", "a"), ("a",)])
def test_label_maps_have_the_trained_order(given):
    dataset = SimpleNamespace(metainfo={"classes": given})
    with pytest.raises(ValueError, match="other classes"):
        evaluate_as_trained(["a", "b"], dataset)
    evaluate_as_trained(list(given), dataset)
    evaluate_as_trained(None, dataset)
