"""A test of a checkpoint or a timm model, against the same computed with a loop, torch and timm."""

import csv
import json
import math

import numpy as np
import pytest
import timm
import torch
from evaluated import (
    DEMO,
    OPTIONS,
    agrees,
    by_the_book,
    list_of_classes,
    network,
    shapes,
    tree,
)
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from soft_vit.data import CLASSES
from soft_vit.engine import evaluate
from soft_vit.weights.files import RESOURCES
from soft_vit.weights.read import NOTES_KEY, Notes


def test_everything_that_is_reported(checkpoint, models, tmp_path):
    files = {name: tmp_path / name for name in ("out", "per_class", "confusion")}
    metrics = evaluate(DEMO, checkpoint, work_dir=tmp_path, options=OPTIONS, **files)
    images, labels = shapes()
    logits = models["averaged"](images)
    assert agrees(metrics, by_the_book(logits, labels))
    assert metrics["images_per_second/forward"] > 0
    assert metrics["images_per_second/loop"] > 0

    written = json.loads(files["out"].read_text())
    assert {name: written[name] for name in metrics} == metrics
    assert written["model"] == checkpoint

    predicted = logits.argmax(1).tolist()
    rows = list(csv.DictReader(files["per_class"].open()))
    assert [row["class"] for row in rows] == list(CLASSES)
    for index, row in enumerate(rows):
        own = [p == index for p, label in zip(predicted, labels, strict=True) if label == index]
        assert (int(row["images"]), int(row["correct"])) == (len(own), sum(own))
        assert float(row["accuracy/top1"]) == pytest.approx(100 * np.mean(own), abs=0.005)
    header, *rows = csv.reader(files["confusion"].open())
    assert header[1:] == [row[0] for row in rows] == list(CLASSES)
    pairs = list(zip(labels, predicted, strict=True))
    assert [[int(n) for n in row[1:]] for row in rows] == [[pairs.count((t, p)) for p in range(10)] for t in range(10)]


def test_config_in_pure_python(checkpoint, models, tmp_path):
    path = tmp_path / "config.py"
    path.write_text(
        """
from mmengine.dataset import DefaultSampler
from mmengine.hooks import EMAHook
from mmpretrain.datasets import PackInputs

from soft_vit.engine import ClassificationMetric, LoadedImage, ShapesDataset, TimmProgressClassifier

default_scope = "mmpretrain"
model = dict(
    type=TimmProgressClassifier, model_name="soft_pico", num_classes=10, img_size=32, depths=[1, 1, 1, 1],
    data_preprocessor=dict(mean=[127.5] * 3, std=[64.0] * 3, to_rgb=False),
)
test_pipeline = [dict(type=LoadedImage), dict(type=PackInputs)]
test_dataloader = dict(
    batch_size=16,
    dataset=dict(type=ShapesDataset, split="test", length=37, size=32, pipeline=test_pipeline),
    sampler=dict(type=DefaultSampler, shuffle=False),
)
test_evaluator = dict(type=ClassificationMetric)
test_cfg = dict()
custom_hooks = [dict(type=EMAHook)]
"""
    )
    metrics = evaluate(path, checkpoint, ema=False, work_dir=tmp_path)
    images, labels = shapes()
    assert agrees(metrics, by_the_book(models["plain"](images), labels))


def test_plain_weights(checkpoint, models, tmp_path):
    # MMEngine's own hook would exchange them.
    options = {**OPTIONS, "custom_hooks": [{"type": "EMAHook"}, {"type": "EMAEvalHook"}]}
    metrics = evaluate(DEMO, checkpoint, ema=False, work_dir=tmp_path, options=options)
    images, labels = shapes()
    assert agrees(metrics, by_the_book(models["plain"](images), labels))


@pytest.mark.parametrize(("naming", "crop"), [("named", {}), ("numbered", {"img_size": 32, "crop_pct": 0.8})])
def test_folder_with_some_of_the_classes(checkpoint, models, folders, tmp_path, naming, crop):
    table = tmp_path / "confusion.csv"
    metrics = evaluate(
        DEMO,
        checkpoint,
        data_root=folders / naming,
        **crop,
        confusion=table,
        work_dir=tmp_path,
        options=OPTIONS,
    )
    images, names = tree(folders / naming, 32, crop.get("crop_pct", 1.0))
    there = [0, 3, 4, 9]
    labels = [there.index(CLASSES.index(name) if naming == "named" else int(name)) for name in names]
    assert agrees(metrics, by_the_book(models["averaged"](images)[:, there], labels))
    assert next(csv.reader(table.open()))[1:] == [CLASSES[index] for index in there]


def test_folder_for_a_config_that_loads_by_mmcv(folders, tmp_path):
    """Its transforms take arrays, and its classifier has no pass whose rate could be told."""
    cfg = Config(
        {
            "default_scope": "mmpretrain",
            "custom_imports": {"imports": ["soft_vit.engine"]},
            "data_preprocessor": {"mean": [127.5] * 3, "std": [64.0] * 3, "to_rgb": True, "num_classes": 10},
            "model": {
                "type": "ImageClassifier",
                "backbone": {"type": "TIMMBackbone", "model_name": "test_resnet"},
                "neck": {"type": "GlobalAveragePooling"},
                "head": {"type": "LinearClsHead", "num_classes": 10, "in_channels": 96},
            },
            "test_dataloader": {
                "batch_size": 4,
                "dataset": {
                    "type": "CustomDataset",
                    "data_root": "none",
                    "pipeline": [
                        {"type": "LoadImageFromFile"},
                        {"type": "ResizeEdge", "scale": 40, "interpolation": "bicubic"},
                        {"type": "CenterCrop", "crop_size": 32},
                        {"type": "PackInputs"},
                    ],
                },
                "sampler": {"type": "DefaultSampler", "shuffle": False},
            },
            "test_evaluator": {"type": "Accuracy"},
            "test_cfg": {},
        }
    )
    cfg.dump(tmp_path / "config.py")
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope("mmpretrain"):
        model = MODELS.build(cfg.model).eval()
    torch.save({"state_dict": model.state_dict(), "meta": {"dataset_meta": {"classes": CLASSES}}}, tmp_path / "a.pth")
    metrics = evaluate(tmp_path / "config.py", str(tmp_path / "a.pth"), data_root=folders / "named", work_dir=tmp_path)
    images, names = tree(folders / "named", 32, 0.8)
    there = [0, 3, 4, 9]
    labels = [there.index(CLASSES.index(name)) for name in names]
    assert agrees(metrics, by_the_book(model(images)[:, there], labels))
    assert "images_per_second/forward" not in metrics


@pytest.mark.parametrize("name", ["soft_pico", "synthesizer_pyramid_pico"])
def test_another_size(folders, tmp_path, name):
    """The weights are those of 32 pixels, resampled once where they belong to a grid."""
    model = network(name)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    metrics = evaluate(
        DEMO,
        str(tmp_path / "weights.pth"),
        img_size=44,
        crop_pct=1.0,
        data_root=folders / "numbered",
        classes=list_of_classes(tmp_path),
        work_dir=tmp_path,
        options={**OPTIONS, "model.model_name": name},
    )
    images, names = tree(folders / "numbered", 44, 1.0)
    model.set_input_size(44)
    there = [0, 3, 4, 9]
    assert agrees(metrics, by_the_book(model(images)[:, there], [there.index(int(name)) for name in names]))


@pytest.mark.parametrize("size", [None, 96])
def test_timm_model_sees_images_as_timm_prepares_them(folders, tmp_path, size):
    torch.manual_seed(0)
    model = timm.create_model("test_vit").eval()
    assert model.pretrained_cfg["crop_pct"] == 0.95
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    options = {key: value for key, value in OPTIONS.items() if not key.startswith("model.")}
    metrics = evaluate(
        DEMO,
        "test_vit",
        weights=str(tmp_path / "weights.pth"),
        img_size=size,
        data_root=folders / "numbered",
        work_dir=tmp_path,
        # Otherwise it would adapt itself to any size.
        options={**options, "model.dynamic_img_size": False},
    )
    images, names = tree(folders / "numbered", size or 160, 0.95, mean=0.5, std=0.5)
    model.set_input_size(size)
    there = [0, 3, 4, 9]
    with torch.no_grad():
        expected = by_the_book(model(images)[:, there], [there.index(int(name)) for name in names])
    assert agrees(metrics, expected)


@pytest.mark.parametrize("from_file", [True, False])
def test_weights_that_know_their_images_are_shown_such(folders, tmp_path, from_file):
    """The shipped weights under the model's bare name, whose own configuration is another."""
    shipped = RESOURCES / "checkpoints" / "soft_pico.shapes.safetensors"
    copied = tmp_path / "mine.safetensors"
    copied.write_bytes(shipped.read_bytes())
    metrics = evaluate(
        # Its training images, which could name the classes, are not there.
        RESOURCES / "configs" / "soft_tiny.py",
        "soft_pico",
        weights=str(copied) if from_file else None,
        data_root=folders / "numbered",
        work_dir=tmp_path,
        options={"test_dataloader.num_workers": 0},
    )
    model = timm.create_model("soft_pico.shapes", pretrained=True).eval()
    cfg = model.pretrained_cfg
    images, names = tree(folders / "numbered", 64, cfg["crop_pct"], cfg["mean"][0], cfg["std"][0], cfg["interpolation"])
    there = [0, 3, 4, 9]
    with torch.no_grad():
        expected = by_the_book(model(images)[:, there], [there.index(int(name)) for name in names])
    assert agrees(metrics, expected)


def test_weights_that_know_their_options_are_tested_with_them(folders, tmp_path):
    """No name or shape tells how tokens are pooled."""
    model, there = network(num_classes=4, global_pool="avg"), ["0", "3", "4", "9"]
    cfg = {"input_size": (3, 32, 32), "crop_pct": 1.0, "mean": (0.5,) * 3, "std": (0.25,) * 3, "label_names": there}
    notes = Notes("soft_pico", {"depths": [1, 1, 1, 1], "global_pool": "avg"}, cfg)
    torch.save({"state_dict": model.state_dict(), "meta": {NOTES_KEY: notes.to_dict()}}, tmp_path / "weights.pth")
    metrics = evaluate(
        RESOURCES / "configs" / "soft_tiny.py",
        "soft_pico",
        weights=str(tmp_path / "weights.pth"),
        data_root=folders / "numbered",
        work_dir=tmp_path,
        options={"test_dataloader.num_workers": 0},
    )
    images, names = tree(folders / "numbered", 32, crop_pct=1.0, mean=0.5, std=0.25)
    assert agrees(metrics, by_the_book(model(images), [there.index(name) for name in names]))


@pytest.mark.parametrize(
    ("model", "arguments", "error", "message"),
    [
        ("none.pth", {}, FileNotFoundError, "There is no checkpoint none.pth, and timm has no model of that name"),
        ("{checkpoint}", {"weights": "x.pth"}, ValueError, "a checkpoint with its own"),
        ("{checkpoint}", {"img_size": 0}, ValueError, "img_size .* 0"),
        ("{checkpoint}", {"crop_pct": 1.5}, ValueError, "crop_pct .* 1.5"),
        ("{checkpoint}", {"classes": "no.txt"}, ValueError, "no.txt"),
        ("{checkpoint}", {"img_size": 31}, ValueError, "PyramidViT does not take images of 31 x 31"),
        ("{checkpoint}", {"data_root": "nowhere"}, FileNotFoundError, "There is no folder nowhere"),
        ("{checkpoint}", {"data_root": "{folders}"}, ValueError, "10 classes.*'named'"),
        (
            "{checkpoint}",
            {"data_root": "{folders}/named", "classes": "no.txt"},
            FileNotFoundError,
            "no list of classes",
        ),
        ("test_vit", {"weights": "x.pth"}, FileNotFoundError, "There is no checkpoint x.pth"),
        ("test_vit", {"weights": "https://127.0.0.1:9/x.pth"}, ValueError, "x.pth cannot be fetched"),
        ("resnet18.none", {}, ValueError, r"Invalid pretrained tag \(none\) for resnet18; choose a name of timm"),
        ("soft_norm_pico", {}, ValueError, "No pretrained weights exist for soft_norm_pico"),
        (
            "test_vit",
            {"pretrained": False, "img_size": 100},
            ValueError,
            "VisionTransformer does not take images of 100",
        ),
    ],
)
def test_mistakes_are_one_sentence(checkpoint, folders, tmp_path, model, arguments, error, message):
    fill = {"checkpoint": checkpoint, "folders": folders}
    arguments = {key: value.format(**fill) if isinstance(value, str) else value for key, value in arguments.items()}
    options = OPTIONS if model == "{checkpoint}" else {}
    with pytest.raises(error, match=message) as caught:
        evaluate(DEMO, model.format(**fill), work_dir=tmp_path, options=options, **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "evaluator",
    [
        [{"type": "mmpretrain.Accuracy", "topk": (1, 3)}, {"type": "ConfusionMatrix", "num_classes": 10}],
        {"type": "soft_vit.ClassificationMetric", "topk": 3},
    ],
)
def test_accuracies_are_those_of_this_package_and_of_any_k(checkpoint, models, tmp_path, evaluator):
    metrics = evaluate(
        DEMO, checkpoint, work_dir=tmp_path, options={**OPTIONS, "test_evaluator": evaluator}, img_size=32
    )
    images, labels = shapes()
    assert agrees(metrics, by_the_book(models["averaged"](images), labels))
    assert {name for name in metrics if "accuracy" in name} == {f"accuracy/top{k}" for k in (1, 3, 5)}
    assert all(math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("name", ["out", "per_class", "confusion"])
@pytest.mark.parametrize(("path", "message"), [("file/a.json", "cannot be written"), ("folder", "is a folder")])
def test_where_results_cannot_go_is_said_before_the_test(tmp_path, name, path, message):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=message):
        evaluate("configs/none.py", "soft_pico", **{name: tmp_path / path})


@pytest.mark.parametrize(
    ("state", "message"),
    [({"num_classes": 7}, "belongs to another model.*head"), ({"depths": (1, 1, 2, 1)}, "do not fit|another model")],
)
def test_checkpoint_of_another_model(tmp_path, state, message):
    torch.save({"state_dict": network(**state).state_dict()}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=message):
        evaluate(DEMO, str(tmp_path / "other.pth"), work_dir=tmp_path, options=OPTIONS)


def test_a_config_without_test_images(tmp_path):
    with pytest.raises(ValueError, match="test_dataloader"):
        evaluate(DEMO, "resnet18", work_dir=tmp_path, options={"test_dataloader": None})


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("{checkpoint}", {"img_size": 64, "confusion": "a.csv"}, "--confusion, --img-size"),
        ("resnet18", {}, "resnet18"),
        ("{checkpoint}", {"tta": True}, "tta_model and tta_pipeline"),
    ],
)
def test_only_classifiers_are_asked_for_classes(checkpoint, tmp_path, monkeypatch, model, arguments, message):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "boxes.py"
    path.write_text(
        'model = dict(type="A")\ntest_evaluator = dict(type="CocoAP")\ntest_dataloader = dict(dataset=dict())'
    )
    with pytest.raises(ValueError, match=message):
        evaluate(path, model.format(checkpoint=checkpoint), work_dir=tmp_path, **arguments)


def test_average_that_is_not_there(tmp_path):
    torch.save({"state_dict": network().state_dict()}, tmp_path / "plain.pth")
    with pytest.raises(ValueError, match="no averaged weights"):
        evaluate(DEMO, str(tmp_path / "plain.pth"), ema=True, work_dir=tmp_path, options=OPTIONS)


def test_loss_that_is_no_number_is_null_in_json(tmp_path):
    broken = network()
    torch.nn.init.constant_(broken.head.bias, torch.nan)
    torch.save({"state_dict": broken.state_dict()}, tmp_path / "nan.pth")
    evaluate(DEMO, str(tmp_path / "nan.pth"), out=tmp_path / "out.json", work_dir=tmp_path, options=OPTIONS)

    def refuse(text: str) -> None:
        raise AssertionError(text)

    written = json.loads((tmp_path / "out.json").read_text(), parse_constant=refuse)
    assert written["cross_entropy"] is None
