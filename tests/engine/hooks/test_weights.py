"""Which weights and classes a run takes, and which it refuses."""

import logging
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import timm
import torch
from mmengine.runner import BaseLoop
from PIL import Image
from torch import nn

from soft_vit.data import CLASSES
from soft_vit.engine import ImageTree, TimmTrainClassifier, WeightsHook
from soft_vit.engine.hooks.checks import RunChecksHook, match_classes
from soft_vit.engine.hooks.weights import changed_options
from soft_vit.weights.load import fit
from soft_vit.weights.spec import NOTES_KEY, ModelSpec

# Weights fitted where a run begins, and held against the model where it resumes or is tested.


class Loop(BaseLoop):
    def __init__(self) -> None:
        pass

    def run(self) -> None:
        pass


def a_run(model, what: str, classes: str = "", **parts) -> SimpleNamespace:
    """A run that begins, resumes or tests."""
    data = SimpleNamespace(dataset=SimpleNamespace(metainfo={"classes": tuple(classes)}))
    loop = what != "test" and Loop()
    return SimpleNamespace(
        model=model, cfg={}, train_dataloader=data, _resume=what == "resume", _train_loop=loop, **parts
    )


def small(**options) -> nn.Module:
    return timm.create_model("soft_pico", **{"num_classes": 10, "img_size": 64, "depths": (1, 1, 1, 1), **options})


@pytest.mark.parametrize(("classes", "new"), [("abc", False), ("cab", True), ("abd", True), ("", False)])
def test_a_head_for_other_classes_is_new(classes, new):
    trained, model = small(num_classes=3), small(num_classes=3)
    fresh = model.head.weight.clone()
    checkpoint = {"state_dict": trained.state_dict(), "meta": {"dataset_meta": {"classes": ("a", "b", "c")}}}
    runner = a_run(SimpleNamespace(model=model), "begin", classes, logger=Mock())
    WeightsHook().after_load_checkpoint(runner, checkpoint)
    model.load_state_dict(checkpoint["state_dict"], strict=False)
    assert torch.equal(model.head.weight, fresh if new else trained.head.weight)
    assert any("other names" in str(call) for call in runner.logger.mock_calls) == new


@pytest.mark.parametrize(("classes", "fits"), [("abc", True), ("cab", False), ("abd", False), ("", True)])
def test_a_resumed_run_needs_the_same_classes(classes, fits):
    meta = {"dataset_meta": {"classes": ("a", "b", "c")}}
    checkpoint = {"state_dict": PLAIN.state_dict(), "meta": meta, "message_hub": {}}
    with nullcontext() if fits else pytest.raises(ValueError, match="a, b, c"):
        WeightsHook().after_load_checkpoint(a_run(PLAIN, "resume", classes), checkpoint)


PLAIN = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def plain_state(**changes):
    entries = {**PLAIN.state_dict(), **changes}
    return {name: value for name, value in entries.items() if value is not None}


GIVEN = {
    "same": (plain_state(), None),
    "from DDP": ({f"module.{name}": value for name, value in plain_state().items()}, None),
    "without a counter": (plain_state(**{"1.num_batches_tracked": None}), None),
    "missing": (plain_state(**{"0.weight": None}), "0.weight"),
    "unknown": (plain_state(extra=torch.ones(1)), "extra"),
    "shape": (plain_state(**{"0.bias": torch.ones(7)}), r"0.bias with \(7,\) instead of \(3,\)"),
}


@pytest.mark.parametrize(("given", "named"), GIVEN.values(), ids=GIVEN)
def test_names_and_shapes(given, named):
    assert len(fit({"state_dict": given}, PLAIN, strict=False)[1].changes) == bool(named)
    with pytest.raises(ValueError, match=named) if named else nullcontext():
        fit({"state_dict": given}, PLAIN)
    with pytest.raises(ValueError, match="conv"):
        fit({"state_dict": {"conv.weight": torch.ones(1)}}, PLAIN, strict=False)


ALIKE = [("soft_norm_pico", "soft_pico"), ("linear_pyramid_pico", "hydra_pyramid_pico")]
ALIKE += [("linear_vit_tiny_patch16", "efficient_vit_tiny_patch16")]


@pytest.mark.parametrize(("name", "other"), ALIKE)
@pytest.mark.parametrize("what", ["resume", "test"])
def test_a_checkpoint_that_notes_another_model_with_the_same_parameters(what, name, other):
    runner = a_run(TimmTrainClassifier(name, img_size=64), what, logger=Mock())
    meta = {"epoch": 1, "iter": 2, NOTES_KEY: {"model": name}}
    checkpoint = {"state_dict": dict(runner.model.state_dict()), "meta": meta, "message_hub": {}}
    WeightsHook().after_load_checkpoint(runner, checkpoint)
    checkpoint["meta"][NOTES_KEY]["model"] = other
    with pytest.raises(ValueError, match=other):
        WeightsHook().after_load_checkpoint(runner, checkpoint)


@pytest.mark.parametrize("noted", [True, False])
def test_weights_of_another_image_size_are_resampled_but_for_a_resumed_run(noted):
    trained, model = small(img_size=32), small(img_size=224)
    meta = {NOTES_KEY: {"model": "soft_pico", "options": {"img_size": [32, 32]}}} if noted else {}
    checkpoint = {"state_dict": dict(trained.state_dict()), "meta": meta, "message_hub": {}}
    with pytest.raises(ValueError, match="resampled"):
        WeightsHook().after_load_checkpoint(a_run(SimpleNamespace(model=model), "resume"), checkpoint)
    runner = a_run(SimpleNamespace(model=model), "test", logger=logging.getLogger("test"))
    WeightsHook().after_load_checkpoint(runner, checkpoint)
    trained.set_input_size((224, 224))
    for name, value in trained.state_dict().items():
        assert torch.equal(checkpoint["state_dict"][name], value), name


# Without a head, features would pass for scores.
@pytest.mark.parametrize("outputs", [9, 0])
def test_classes_that_are_not_the_models(outputs):
    model = SimpleNamespace(model=SimpleNamespace(num_classes=outputs))
    data = SimpleNamespace(dataset=SimpleNamespace(metainfo={"classes": CLASSES}))
    runner = SimpleNamespace(model=model, test_dataloader=data)
    with pytest.raises(ValueError, match=f"{outputs} classes of the model, got 10"):
        WeightsHook().before_test(runner)


CHANGED = [
    ({"global_pool": "avg", "max_bottleneck": (7, 7)}, {}),
    ({"global_pool": "avg", "max_bottleneck": (7, 7), "img_size": 96}, {}),
    ({"max_bottleneck": (2, 2)}, {"global_pool": ("avg", "token"), "max_bottleneck": ([7, 7], (2, 2))}),
]


@pytest.mark.parametrize(("own", "changed"), CHANGED)
def test_options_that_differ_from_the_training_are_found(own, changed):
    options = {"global_pool": "avg", "max_bottleneck": [7, 7], "img_size": [64, 64]}
    model = small(drop_path_rate=0.1, **own)
    assert changed_options(ModelSpec("soft_pico", options), model) == changed
    assert changed_options(ModelSpec(), model) == {}


# What does not fit is refused before the first step.


HEADS = [(10, 10, True), (10, 1000, True), (None, 1, True), (11, 10, False)]


@pytest.mark.parametrize(("classes", "head", "fits"), HEADS)
def test_classes_fit_the_head(classes, head, fits):
    model = SimpleNamespace(num_classes=head)
    metainfo = {} if classes is None else {"classes": tuple(map(str, range(classes)))}
    loader = SimpleNamespace(dataset=SimpleNamespace(metainfo=metainfo))
    for owner in (model, SimpleNamespace(model=model)):
        run = SimpleNamespace(train_dataloader=loader, model=owner, val_loop=None)
        with nullcontext() if fits else pytest.raises(ValueError, match=str(classes)):
            RunChecksHook().before_train(run)


@pytest.mark.parametrize(("classes", "fits"), [("abc", True), ("cab", False), ("abd", False), ("", True)])
def test_a_teacher_has_the_classes_of_the_data(classes, fits):
    overlay = {"num_classes": 3, "label_names": ("a", "b", "c")}
    teacher = SimpleNamespace(model=small(num_classes=3, device="meta", pretrained_cfg_overlay=overlay))
    run = a_run(SimpleNamespace(num_classes=3, teacher=teacher), "begin", classes, val_loop=None)
    with nullcontext() if fits else pytest.raises(ValueError, match="a, b, c"):
        RunChecksHook().before_train(run)


MATCHED = [("abc", [0, 1, 2]), ("bc", [1, 2]), ("bd", None)]


@pytest.mark.parametrize(("names", "labels"), MATCHED, ids=["all", "some", "strange"])
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
    # Which of two classes of one name is meant, nothing tells.
    numbered = SimpleNamespace(metainfo={"classes": ("a", "b")}, number_like=lambda names: None)
    match_classes(numbered, ["b", "a", "c"], "the checkpoint")
    with pytest.raises(ValueError, match="a, b, a"):
        match_classes(numbered, ["a", "b", "a"], "the checkpoint")
