"""A test of a checkpoint or a timm model, against the same computed with a loop, torch and timm."""

import csv
import json
import math

import numpy as np
import pytest
import timm
import torch
from engine.runs import NARROW
from evaluated import DEMO, OPTIONS, THERE, agrees, by_the_book, expected_on_folder, expected_on_shapes, network, shapes

from soft_vit.data import CLASSES
from soft_vit.engine import evaluate
from soft_vit.weights.files import RESOURCES
from soft_vit.weights.read import NOTES_KEY, Notes


def test_everything_that_is_reported(checkpoint, models, tmp_path):
    files = {name: tmp_path / name for name in ("out", "per_class", "confusion")}
    metrics = evaluate(DEMO, checkpoint, work_dir=tmp_path, options=OPTIONS, **files)
    images, labels = shapes()
    logits = models["averaged"](images)
    assert agrees(metrics, {**by_the_book(logits, labels), "images": 37})
    assert metrics["images_per_second"] > 0

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


@pytest.mark.parametrize(("naming", "crop"), [("named", {}), ("numbered", {"img_size": 32, "crop_pct": 0.8})])
def test_folder_with_some_of_the_classes(checkpoint, models, folders, tmp_path, naming, crop):
    table = tmp_path / "confusion.csv"
    files = {"data_root": folders / naming, "confusion": table, "work_dir": tmp_path}
    metrics = evaluate(DEMO, checkpoint, **files, **crop, options=OPTIONS)
    crop_pct = crop.get("crop_pct", 1.0)
    assert agrees(metrics, expected_on_folder(models["averaged"], folders / naming, 32, crop_pct))
    assert next(csv.reader(table.open()))[1:] == [CLASSES[index] for index in THERE]


def test_another_size(folders, tmp_path):
    """The weights are those of 32 pixels, resampled once where they belong to a grid."""
    name = "synthesizer_pyramid_pico"
    model = network(name)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    files = {"data_root": folders / "numbered", "work_dir": tmp_path}
    options = {**OPTIONS, "model.model_name": name}
    metrics = evaluate(DEMO, str(tmp_path / "weights.pth"), img_size=44, crop_pct=1.0, **files, options=options)
    model.set_input_size(44)
    assert agrees(metrics, expected_on_folder(model, folders / "numbered", 44, 1.0))


def test_timm_model_sees_images_as_timm_prepares_them(folders, tmp_path):
    torch.manual_seed(0)
    model = timm.create_model("test_vit").eval()
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    options = {key: value for key, value in OPTIONS.items() if not key.startswith("model.")}
    # Otherwise it would adapt itself to any size.
    options["model.dynamic_img_size"] = False
    files = {"weights": str(tmp_path / "weights.pth"), "data_root": folders / "numbered", "work_dir": tmp_path}
    metrics = evaluate(DEMO, "test_vit", img_size=96, **files, options=options)
    model.set_input_size(96)
    assert model.pretrained_cfg["crop_pct"] == 0.95
    assert agrees(metrics, expected_on_folder(model, folders / "numbered", 96, 0.95, 0.5, 0.5))


# Its training images, which could name the classes, are not there.
IMAGENET = RESOURCES / "configs" / "soft_tiny.py"


def test_published_weights_are_shown_their_images(folders, tmp_path):
    """Under the model's bare name, whose own configuration is another."""
    files = {"data_root": folders / "numbered", "work_dir": tmp_path}
    metrics = evaluate(IMAGENET, "soft_pico", **files, options={"test_dataloader.num_workers": 0})
    model = timm.create_model("soft_pico.shapes", pretrained=True).eval()
    cfg = model.pretrained_cfg
    view = (64, cfg["crop_pct"], cfg["mean"][0], cfg["std"][0], cfg["interpolation"])
    assert agrees(metrics, expected_on_folder(model, folders / "numbered", *view))


def test_weights_that_know_their_options_are_tested_with_them(folders, tmp_path):
    """No name or shape tells how tokens are pooled."""
    model = network(num_classes=4, global_pool="avg")
    cfg = {"input_size": (3, 32, 32), "crop_pct": 1.0, "mean": (0.5,) * 3, "std": (0.25,) * 3}
    options = {**NARROW, "global_pool": "avg"}
    notes = Notes("soft_pico", options, {**cfg, "label_names": [str(label) for label in THERE]})
    torch.save({"state_dict": model.state_dict(), "meta": {NOTES_KEY: notes.to_dict()}}, tmp_path / "weights.pth")
    files = {"weights": str(tmp_path / "weights.pth"), "data_root": folders / "numbered", "work_dir": tmp_path}
    metrics = evaluate(IMAGENET, "soft_pico", **files, options={"test_dataloader.num_workers": 0})
    assert agrees(metrics, expected_on_folder(model, folders / "numbered", 32, 1.0, 0.5, 0.25))


@pytest.mark.parametrize(
    ("model", "arguments", "error", "named"),
    [
        ("none.pth", {}, FileNotFoundError, "none.pth"),
        ("{checkpoint}", {"crop_pct": 1.5}, ValueError, "1.5"),
        ("{checkpoint}", {"img_size": 31}, ValueError, "31"),
        ("{checkpoint}", {"data_root": "{folders}"}, ValueError, "'named'"),
        ("test_vit", {"weights": "x.pth"}, FileNotFoundError, "x.pth"),
        ("soft_norm_pico", {}, ValueError, "soft_norm_pico"),
        ("{other}", {}, ValueError, "head"),
    ],
)
def test_mistakes(checkpoint, folders, tmp_path, model, arguments, error, named):
    torch.save({"state_dict": network(num_classes=7).state_dict()}, tmp_path / "other.pth")
    fill = {"checkpoint": checkpoint, "folders": folders, "other": tmp_path / "other.pth"}
    arguments = {key: value.format(**fill) if isinstance(value, str) else value for key, value in arguments.items()}
    with pytest.raises(error, match=named):
        evaluate(DEMO, model.format(**fill), work_dir=tmp_path, options=OPTIONS if "{" in model else {}, **arguments)


def test_accuracies_are_those_of_this_package_and_of_any_k(checkpoint, models, tmp_path):
    others = [{"type": "mmpretrain.Accuracy", "topk": (1, 3)}, {"type": "ConfusionMatrix", "num_classes": 10}]
    metrics = evaluate(DEMO, checkpoint, work_dir=tmp_path, options={**OPTIONS, "test_evaluator": others}, img_size=32)
    assert agrees(metrics, expected_on_shapes(models["averaged"]))
    assert {name for name in metrics if "accuracy" in name} == {f"accuracy/top{k}" for k in (1, 3, 5)}
    assert all(math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("name", ["out", "per_class", "confusion"])
def test_where_results_cannot_go_is_known_before_the_test(tmp_path, name):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "a.json"):
        with pytest.raises(ValueError, match=path.name):
            evaluate("configs/none.py", "soft_pico", **{name: path})


@pytest.mark.parametrize("arguments", [{"img_size": 64}, {"model": "resnet18"}, {"tta": True}])
def test_only_classifiers_are_asked_for_classes(checkpoint, tmp_path, arguments):
    detection = RESOURCES / "configs" / "detection" / "retinanet_soft_pico_shapes.py"
    with pytest.raises(ValueError, match="tta" if "tta" in arguments else "image classification"):
        evaluate(detection, **{"model": checkpoint, "work_dir": tmp_path, **arguments})


def test_loss_that_is_no_number_is_null_in_json(tmp_path):
    broken = network()
    torch.nn.init.constant_(broken.head.bias, torch.nan)
    torch.save({"state_dict": broken.state_dict()}, tmp_path / "nan.pth")
    evaluate(DEMO, str(tmp_path / "nan.pth"), out=tmp_path / "out.json", work_dir=tmp_path, options=OPTIONS)
    assert json.loads((tmp_path / "out.json").read_text())["cross_entropy"] is None
