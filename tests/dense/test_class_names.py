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


def lack_the_first_category(content: dict) -> None:
    number = content["categories"].pop(0)["id"]
    content["annotations"] = [entry for entry in content["annotations"] if entry["category_id"] != number]


def number_the_other_way(content: dict) -> None:
    for entry in content["categories"]:
        entry["id"] = 100 - entry["id"]
    for entry in content["annotations"]:
        entry["category_id"] = 100 - entry["category_id"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("classes") / "coco"
    make_tree(root, "coco", train=1, val=8, size=96, seed=3)
    return root


def rename(content: dict) -> None:
    content["categories"][0]["name"] = "blob"


@pytest.mark.parametrize("change", [lambda content: None, lack_the_first_category, number_the_other_way, rename])
def test_categories_are_those_of_the_training_by_name(tree, tmp_path, change):
    content = json.loads((tree / "annotations/instances_val2017.json").read_text())
    trained = [category["name"] for category in content["categories"]]
    change(content)
    (tmp_path / "edited.json").write_text(json.dumps(content))
    data, evaluator = CocoImages(str(tree), tmp_path / "edited.json", "val2017", test_mode=True), SimpleNamespace()
    if change is rename:
        with pytest.raises(ValueError, match="'blob'"):
            evaluate_as_trained(trained, data)
        return
    evaluate_as_trained(trained, data, evaluator)
    meta = evaluator.dataset_meta
    assert meta["classes"] == tuple(trained)
    numbers = dict(zip(meta["classes"], meta["category_ids"], strict=True))
    assert len(set(numbers.values())) == len(trained)
    assert {category["name"]: category["id"] for category in content["categories"]}.items() <= numbers.items()


@pytest.mark.parametrize("given", [("b", "a"), ("a",)])
def test_label_maps_have_the_trained_order(given):
    dataset = SimpleNamespace(metainfo={"classes": given})
    with pytest.raises(ValueError, match="other classes"):
        evaluate_as_trained(["a", "b"], dataset)
    evaluate_as_trained(list(given), dataset)
    evaluate_as_trained(None, dataset)
