"""Images with several labels: training, test and prediction."""

import csv

import pytest
import timm
import torch
from engine.runs import CONFIGS, NARROW, NARROW_MODEL, assert_same_state
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

from soft_vit.data import CLASSES
from soft_vit.data.demo.trees import make_tree
from soft_vit.engine import evaluate
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.engine.run import train
from soft_vit.predict import load_predictor

CONFIG = CONFIGS / "demo" / "soft_pico_labels.py"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("labels") / "data"
    make_tree(root, "labels", train=12, val=7, size=32)
    # One image without any class.
    lines = (root / "val.csv").read_text().splitlines()
    (root / "val.csv").write_text("\n".join([*lines[:-1], lines[-1].split(",")[0] + ","]))
    return root


@pytest.fixture(scope="module")
def options(data):
    return {
        "data_root": str(data),
        "load_from": None,
        "image_size": 32,
        **NARROW_MODEL,
        "train_dataloader.batch_size": 4,
        "train_cfg.max_epochs": 2,
        "default_hooks.checkpoint.max_keep_ckpts": -1,
    }


@pytest.fixture(scope="module")
def run(options, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(CONFIG, options=options, work_dir=folder)
    return folder


def reference(run, data):
    """Scores and targets of the validation images, by timm and torch."""
    model = timm.create_model("soft_pico", num_classes=10, img_size=32, **NARROW).eval()
    model.load_state_dict(load_checkpoint_file(run / "epoch_2.pth")["state_dict"])
    rows = list(csv.DictReader((data / "val.csv").open()))
    images = [Image.open(data / "val" / row["image"]) for row in rows]
    mean, std = (127.5 / 255,) * 3, (64 / 255,) * 3
    given = {**resolve_model_data_config(model), "input_size": (3, 32, 32), "crop_pct": 1.0, "mean": mean, "std": std}
    transform = create_transform(**given, is_training=False)
    with torch.no_grad():
        scores = model(torch.stack([transform(image) for image in images])).sigmoid()
    target = torch.tensor([[name in row["labels"].split("|") for name in CLASSES] for row in rows])
    return scores, target, [data / "val" / row["image"] for row in rows]


def average_precision(score, target):
    hits = target[score.argsort(descending=True)].double()
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
    return (100 * (precision * hits).sum() / hits.sum().clamp(min=1)).item()


def test_metrics_and_scores_by_the_book(run, data, options, tmp_path):
    checkpoint = str(run / "epoch_2.pth")
    metrics = evaluate(CONFIG, checkpoint, options=options, work_dir=tmp_path, per_class=tmp_path / "classes.csv")
    scores, target, files = reference(run, data)
    expected = [average_precision(scores[:, i], target[:, i]) for i in range(10)]
    assert metrics["multi-label/mAP"] == pytest.approx(sum(expected) / 10, abs=1e-3)
    rows = list(csv.reader((tmp_path / "classes.csv").open()))[1:]
    assert [row[0] for row in rows] == list(CLASSES)
    assert [float(row[1]) for row in rows] == pytest.approx(expected, abs=0.006)
    images = [Image.open(file).convert("RGB") for file in files]
    for given in ({"config": CONFIG, "options": options}, {"model": "soft_pico"}):
        found = load_predictor(checkpoint=checkpoint, topk=10, device="cpu", **given)(images)
        for result, row in zip(found, scores, strict=True):
            assert result.scores == pytest.approx([row[i].item() for i in result.indices], abs=1e-5)
            assert result.scores == sorted(result.scores, reverse=True)


def test_it_resumes_exactly(run, options, tmp_path):
    train(CONFIG, options=options, work_dir=tmp_path, resume=str(run / "epoch_1.pth"))
    assert_same_state(run / "epoch_2.pth", tmp_path / "epoch_2.pth", "state_dict", "optimizer")


def test_a_model_for_one_label(options, tmp_path):
    with pytest.raises(ValueError, match="multi_label"):
        train(CONFIG, options={**options, "model.multi_label": False}, work_dir=tmp_path)


@pytest.mark.parametrize("arguments", [{"data_root": "data"}, {"confusion": "table.csv"}], ids=str)
def test_what_a_test_cannot_do(run, options, arguments):
    with pytest.raises(ValueError, match="several labels"):
        evaluate(CONFIG, str(run / "epoch_1.pth"), options=options, **arguments)
