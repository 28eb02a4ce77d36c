"""What does not fit is refused before the first step."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from PIL import Image

from soft_vit.engine import ImageTree
from soft_vit.engine.hooks.checks import RunChecksHook, match_classes


@pytest.mark.parametrize(
    ("classes", "head", "fits"), [(10, 10, True), (10, 1000, True), (None, 1, True), (11, 10, False)]
)
def test_classes_fit_the_head(classes, head, fits):
    model = SimpleNamespace(num_classes=head)
    metainfo = {} if classes is None else {"classes": tuple(map(str, range(classes)))}
    loader = SimpleNamespace(dataset=SimpleNamespace(metainfo=metainfo))
    for owner in (model, SimpleNamespace(model=model)):
        run = SimpleNamespace(train_dataloader=loader, model=owner, val_loop=None)
        with nullcontext() if fits else pytest.raises(ValueError, match=str(classes)):
            RunChecksHook().before_train(run)


@pytest.mark.parametrize(
    ("names", "labels"), [("abc", [0, 1, 2]), ("bc", [1, 2]), ("bd", None)], ids=["all", "some", "strange"]
)
def test_classes_are_matched_by_name(tmp_path, names, labels):
    for name in names:
        (tmp_path / "val" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "val" / name / "0.png")
    dataset = ImageTree(str(tmp_path), "val", pipeline=[])
    with nullcontext() if labels else pytest.raises(ValueError, match="'d'"):
        match_classes(dataset, "abc", "the model")
    if labels:
        assert [dataset[i]["gt_label"] for i in range(len(dataset))] == labels
        assert [dataset.get_cat_ids(i) for i in range(len(dataset))] == [[label] for label in labels]
        assert dataset.metainfo["classes"] == ("a", "b", "c")


def test_other_data_with_other_classes_is_refused():
    same = SimpleNamespace(metainfo={"classes": ("a", "b")})
    match_classes(same, ["a", "b"], "the checkpoint")
    match_classes(SimpleNamespace(metainfo={}), ["a", "b"], "the checkpoint")
    with pytest.raises(ValueError, match="a, b, c"):
        match_classes(same, ["a", "b", "c"], "the checkpoint")
