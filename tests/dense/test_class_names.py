"""Classes of the tested data are those of the training, by name."""

import json
from types import SimpleNamespace

import pytest

from soft_vit.data.demo.trees import make_tree
from soft_vit.dense.class_names import ClassNamesHook
from soft_vit.dense.detection import CocoImages


def evaluate_as_trained(trained, dataset) -> dict:
    """The hook's part in a test of a checkpoint that names its classes."""
    hook = ClassNamesHook()
    hook.after_load_checkpoint(None, {"meta": {"dataset_meta": {"classes": trained}}})
    runner = SimpleNamespace(test_dataloader=SimpleNamespace(dataset=dataset), test_evaluator=SimpleNamespace())
    hook.before_test(runner)
    return runner.test_evaluator.dataset_meta


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
