"""Classes of the tested data are those of the training, by name."""

import json
from types import SimpleNamespace

import pytest

from soft_vit.data.demo.trees import make_tree
from soft_vit.dense.class_names import ClassNamesHook
from soft_vit.dense.detection import CocoImages


def evaluate_as_trained(trained, dataset, evaluator=None) -> None:
    """The hook's part in a test of a checkpoint that names its classes."""
    hook = ClassNamesHook()
    hook.after_load_checkpoint(None, {"meta": {"dataset_meta": {"classes": trained}}})
    loader = SimpleNamespace(dataset=dataset)
    hook.before_test(SimpleNamespace(test_dataloader=loader, test_evaluator=evaluator or SimpleNamespace()))


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
    data, evaluator = CocoImages(str(tmp_path / "coco"), path, "val2017", test_mode=True), SimpleNamespace()
    evaluate_as_trained(trained, data, evaluator)
    meta = evaluator.dataset_meta
    assert meta["classes"] == tuple(trained)
    numbers = dict(zip(meta["classes"], meta["category_ids"], strict=True))
    assert len(set(numbers.values())) == len(trained)
    assert {category["name"]: category["id"] for category in content["categories"]}.items() <= numbers.items()
    with pytest.raises(ValueError, match="'arrow'"):
        evaluate_as_trained(trained[:-1], data)


@pytest.mark.parametrize("given", [("b", "a"), ("a",)])
def test_label_maps_have_the_trained_order(given):
    dataset = SimpleNamespace(metainfo={"classes": given})
    with pytest.raises(ValueError, match="other classes"):
        evaluate_as_trained(["a", "b"], dataset)
    evaluate_as_trained(list(given), dataset)
    evaluate_as_trained(None, dataset)
