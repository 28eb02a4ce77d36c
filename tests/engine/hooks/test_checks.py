"""What does not fit is refused before the first step."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from PIL import Image

from soft_vit.engine import ImageTree
from soft_vit.engine.hooks.checks import RunChecksHook, match_classes

TEN = SimpleNamespace(num_classes=10)


@pytest.mark.parametrize(
    ("classes", "model", "message"),
    [
        (10, {"model": TEN}, None),
        (10, {"model": SimpleNamespace(num_classes=1000)}, None),
        (11, {"model": TEN}, "11 classes and the model has 10; set num_classes to 11"),
        (11, {"head": TEN}, "11 classes and the model has 10"),
        (11, {}, None),
        (None, {"model": SimpleNamespace(num_classes=1)}, None),
        (10, {"model": TEN, "data_preprocessor": SimpleNamespace(mixing=None)}, None),
        (10, {"model": TEN, "data_preprocessor": SimpleNamespace(mixing=TEN)}, None),
        (
            9,
            {"model": SimpleNamespace(num_classes=9), "data_preprocessor": SimpleNamespace(mixing=TEN)},
            "num_classes to 9",
        ),
    ],
)
def test_classes_fit_the_head(classes, model, message):
    metainfo = {} if classes is None else {"classes": tuple(map(str, range(classes)))}
    said = []
    run = SimpleNamespace(
        train_dataloader=SimpleNamespace(dataset=SimpleNamespace(metainfo=metainfo)),
        model=SimpleNamespace(**model),
        logger=SimpleNamespace(info=said.append),
        val_loop=None,
    )
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        RunChecksHook().before_train(run)
    assert len(said) == (classes is not None)


@pytest.mark.parametrize(
    ("names", "labels"),
    [("abc", [0, 1, 2]), ("bc", [1, 2]), ("c", [2]), ("bd", "class 'd', which the model lacks")],
)
def test_classes_are_matched_by_name(tmp_path, names, labels):
    for name in names:
        (tmp_path / "val" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "val" / name / "0.png")
    dataset = ImageTree(str(tmp_path), "val", pipeline=[])
    if isinstance(labels, str):
        with pytest.raises(ValueError, match=labels):
            match_classes(dataset, "abc", "the model")
        return
    match_classes(dataset, "abc", "the model")
    assert [dataset[i]["gt_label"] for i in range(len(dataset))] == labels
    assert [dataset.get_cat_ids(i) for i in range(len(dataset))] == [[label] for label in labels]
    assert dataset.metainfo["classes"] == ("a", "b", "c")


def test_other_data_with_other_classes_is_refused():
    same = SimpleNamespace(metainfo={"classes": ("a", "b")})
    match_classes(same, ["a", "b"], "the checkpoint")
    match_classes(SimpleNamespace(metainfo={}), ["a", "b"], "the checkpoint")
    with pytest.raises(ValueError, match="other classes than the checkpoint"):
        match_classes(same, ["a", "b", "c"], "the checkpoint")
