"""Tests of models: figures by the book, images as trained, mirrored and with several labels."""

import csv
import json
import math

import numpy as np
import pytest
import timm
import torch
from engine.runs import CONFIGS, DEMO, NARROW, NARROW_MODEL, assert_same_state
from evaluated import OPTIONS, THERE, Model, agrees, by_the_book, network, on_folder, on_shapes, shapes
from mmengine.config import Config
from mmpretrain.registry import METRICS as MMPRETRAIN_METRICS
from mmpretrain.structures import DataSample
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

from soft_vit.data import CLASSES
from soft_vit.data.demo.trees import make_tree
from soft_vit.engine import evaluate, metrics
from soft_vit.engine.metrics import ClassificationMetric
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.engine.run import train
from soft_vit.predict import load_predictor
from soft_vit.weights.files import RESOURCES
from soft_vit.weights.spec import NOTES_KEY, ModelSpec

# A test of a checkpoint or a timm model, against the same computed with a loop, torch and timm.


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
    assert agrees(metrics, on_folder(models["averaged"], folders / naming, 32, crop.get("crop_pct", 1.0)))
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
    assert agrees(metrics, on_folder(model, folders / "numbered", 44, 1.0))


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
    assert agrees(metrics, on_folder(model, folders / "numbered", 96, 0.95, 0.5, 0.5))


# Its training images, which could name the classes, are not there.
IMAGENET = RESOURCES / "configs" / "soft_tiny.py"


def test_published_weights_are_shown_their_images(folders, tmp_path):
    """Under the model's bare name, whose own configuration is another."""
    files = {"data_root": folders / "numbered", "work_dir": tmp_path}
    metrics = evaluate(IMAGENET, "soft_pico", **files, options={"test_dataloader.num_workers": 0})
    model = timm.create_model("soft_pico.shapes", pretrained=True).eval()
    cfg = model.pretrained_cfg
    view = (64, cfg["crop_pct"], cfg["mean"][0], cfg["std"][0], cfg["interpolation"])
    assert agrees(metrics, on_folder(model, folders / "numbered", *view))


@pytest.mark.parametrize("sized_as", ["images", "option"])
def test_weights_that_know_their_options_are_tested_with_them(sized_as, folders, tmp_path):
    """No name or shape tells how tokens are pooled."""
    model = network(num_classes=4, global_pool="avg")
    cfg = {"crop_pct": 1.0, "mean": (0.5,) * 3, "std": (0.25,) * 3}
    options = {**NARROW, "global_pool": "avg"}
    size = (cfg, {"input_size": (3, 32, 32)}) if sized_as == "images" else (options, {"img_size": (32, 32)})
    size[0].update(size[1])
    notes = ModelSpec("soft_pico", options, {**cfg, "label_names": [str(label) for label in THERE]})
    torch.save({"state_dict": model.state_dict(), "meta": {NOTES_KEY: notes.to_dict()}}, tmp_path / "weights.pth")
    files = {"weights": str(tmp_path / "weights.pth"), "data_root": folders / "numbered", "work_dir": tmp_path}
    metrics = evaluate(IMAGENET, "soft_pico", **files, options={"test_dataloader.num_workers": 0})
    assert agrees(metrics, on_folder(model, folders / "numbered", 32, 1.0, 0.5, 0.25))


MISTAKES = [
    ("none.pth", {}, FileNotFoundError, "none.pth"),
    ("{checkpoint}", {"crop_pct": 1.5}, ValueError, "1.5"),
    ("{checkpoint}", {"img_size": 31}, ValueError, "31"),
    ("{checkpoint}", {"data_root": "{folders}"}, ValueError, "'named'"),
    ("test_vit", {"weights": "x.pth"}, FileNotFoundError, "x.pth"),
    ("soft_norm_pico", {}, ValueError, "soft_norm_pico"),
    ("{other}", {}, ValueError, "head"),
]


@pytest.mark.parametrize(("model", "arguments", "error", "named"), MISTAKES)
def test_mistakes(checkpoint, folders, tmp_path, model, arguments, error, named):
    torch.save({"state_dict": network(num_classes=7).state_dict()}, tmp_path / "other.pth")
    fill = {"checkpoint": checkpoint, "folders": folders, "other": tmp_path / "other.pth"}
    arguments = {key: value.format(**fill) if isinstance(value, str) else value for key, value in arguments.items()}
    with pytest.raises(error, match=named):
        evaluate(DEMO, model.format(**fill), work_dir=tmp_path, options=OPTIONS if "{" in model else {}, **arguments)


def test_accuracies_are_those_of_this_package_and_of_any_k(checkpoint, models, tmp_path):
    others = [{"type": "mmpretrain.Accuracy", "topk": (1, 3)}, {"type": "ConfusionMatrix", "num_classes": 10}]
    metrics = evaluate(DEMO, checkpoint, work_dir=tmp_path, options={**OPTIONS, "test_evaluator": others}, img_size=32)
    assert agrees(metrics, on_shapes(models["averaged"]))
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
    # Logits overflow.
    torch.nn.init.constant_(broken.head.weight, 3e38)
    torch.save({"state_dict": broken.state_dict()}, tmp_path / "nan.pth")
    evaluate(DEMO, str(tmp_path / "nan.pth"), out=tmp_path / "out.json", work_dir=tmp_path, options=OPTIONS)
    assert json.loads((tmp_path / "out.json").read_text())["cross_entropy"] is None


# Against formulas in numpy, for any number of processes.


def scores(images: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    return 3 * torch.randn(images, classes), torch.randint(classes, (images,))


def samples(logits: torch.Tensor, target: torch.Tensor) -> list[dict]:
    return [{"pred_score": p, "gt_label": t[None]} for p, t in zip(logits.softmax(1), target, strict=True)]


def run(metric: ClassificationMetric, logits, target, batch: int = 4) -> dict:
    for part, labels in zip(logits.split(batch), target.split(batch), strict=True):
        metric.process({}, samples(part, labels))
    return metric.evaluate(len(target))


@pytest.mark.parametrize(("images", "classes", "topk"), [(5, 3, (1, 5)), (1, 2, (1,)), (64, 100, (1, 3, 7))])
def test_formulas(images, classes, topk):
    logits, target = scores(images, classes)
    # fp32 probabilities: half an ulp of relative error each, and the same absolute error in their logarithm.
    assert run(ClassificationMetric(topk), logits, target) == pytest.approx(by_the_book(logits, target, topk), abs=1e-6)


def test_restricted_to_classes_is_a_model_of_these_alone():
    logits, _ = scores(41, 20)
    kept = [17, 2, 5, 11, 3, 8]
    among = torch.randint(len(kept), (41,))
    target = torch.tensor(kept)[among]
    metric = ClassificationMetric((1, 5), class_indices=kept, confusion=True)
    assert run(metric, logits, target) == pytest.approx(by_the_book(logits[:, kept], among, (1, 5)), abs=1e-6)
    pairs = list(zip(among.tolist(), logits[:, kept].argmax(1).tolist(), strict=True))
    assert metric.confusion_table.tolist() == [[pairs.count((t, p)) for p in range(6)] for t in range(6)]


@pytest.mark.parametrize(("images", "world_size"), [(10, 2), (2, 3), (7, 4)])
def test_padding_is_not_counted_twice(images, world_size, monkeypatch):
    """Each process has every world_size-th image, and images from the start again to make the shares equal."""
    logits, target = scores(images, 5)
    share = -(-images // world_size)
    dealt = (list(range(images)) * world_size)[: share * world_size]

    sent = []
    monkeypatch.setattr(metrics, "all_reduce", lambda data, op="sum": sent.append(data.clone()))
    tables = []
    for rank in range(world_size):
        monkeypatch.setattr(metrics, "get_dist_info", lambda rank=rank: (rank, world_size))
        own = dealt[rank::world_size]
        metric = ClassificationMetric(confusion=True)
        metric.process({}, samples(logits[own], target[own]))
        if rank < images:
            metric.evaluate(images)
            tables.append(metric.confusion_table)
    sums = sum(data for data in sent if data.is_floating_point())
    assert sums[0] == images
    assert metric.compute_metrics(sums.tolist()) == pytest.approx(by_the_book(logits, target, (1, 5)), abs=1e-6)
    assert sum(tables).sum() == images


def test_impossible_prediction_has_a_finite_loss_and_nan_is_not_hidden():
    metric = ClassificationMetric((1,))
    loss = run(metric, torch.tensor([[0.0, 1000.0]]), torch.tensor([0]))["cross_entropy"]
    assert loss == pytest.approx(-np.log(np.finfo(np.float32).tiny), abs=1e-3)
    assert np.isnan(run(metric, torch.full((1, 2), float("nan")), torch.tensor([0]))["cross_entropy"])


# A test that sees several views of each image, against scores that are merged by hand.


def mean_of_mirrored(model: Model, axis: int = -1) -> Model:
    """Logarithms of the mean of the probabilities for an image and its mirror image."""
    return lambda images: (sum(model(x).softmax(1) for x in (images, images.flip(axis))) / 2).log()


def test_views_of_the_config(checkpoint, models, tmp_path):
    flips = [{"type": "RandomFlip", "prob": prob, "direction": "vertical"} for prob in (0.0, 1.0)]
    views = {"type": "TestTimeAug", "transforms": [flips, [{"type": "PackInputs"}]]}
    own = {"tta_pipeline": [{"type": "LoadedImage"}, views], "tta_model": {"type": "AverageClsScoreTTA"}}
    # A model's own preprocessor comes before that of the config, with one view or with two.
    own["data_preprocessor"] = {"type": "ClsDataPreprocessor", "mean": [0.0] * 3, "std": [1.0] * 3}
    own["model.data_preprocessor"] = {"type": "ClsDataPreprocessor", "mean": [127.5] * 3, "std": [64.0] * 3}
    out = tmp_path / "out.json"
    metrics = evaluate(DEMO, checkpoint, tta=True, ema=False, out=out, work_dir=tmp_path, options=OPTIONS | own)
    assert agrees(metrics, on_shapes(mean_of_mirrored(models["plain"], axis=-2)))
    assert json.loads(out.read_text())["tta"] is True


def test_an_image_and_its_mirror_image_in_a_folder(models, folders, tmp_path):
    """The name of a timm model brings a normalisation of its own; the config of the training stays."""
    torch.save(models["averaged"].state_dict(), tmp_path / "weights.pth")
    (tmp_path / DEMO.name).write_text("trained = True")
    files = {"data_root": folders / "numbered", "work_dir": tmp_path}
    files["weights"] = str(tmp_path / "weights.pth")
    options = {**OPTIONS, "model.num_classes": 10}
    metrics = evaluate(DEMO, "soft_pico", tta=True, img_size=32, crop_pct=0.8, **files, options=options)
    cfg = timm.get_pretrained_cfg("soft_pico")
    view = (32, 0.8, cfg.mean[0], cfg.std[0])
    assert agrees(metrics, on_folder(mean_of_mirrored(models["averaged"]), folders / "numbered", *view))
    assert (tmp_path / DEMO.name).read_text() == "trained = True"
    assert Config.fromfile(tmp_path / "soft_pico_shapes_test.py").model.type == "mmpretrain.AverageClsScoreTTA"


# Images with several labels: training, test and prediction.


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
def run_multi_label(options, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(CONFIG, options=options, work_dir=folder)
    return folder


def reference(run_multi_label, data):
    """Scores and targets of the validation images, by timm and torch."""
    model = timm.create_model("soft_pico", num_classes=10, img_size=32, **NARROW).eval()
    model.load_state_dict(load_checkpoint_file(run_multi_label / "epoch_2.pth")["state_dict"])
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


def test_metrics_and_scores_by_the_book(run_multi_label, data, options, tmp_path):
    checkpoint = str(run_multi_label / "epoch_2.pth")
    metrics = evaluate(CONFIG, checkpoint, options=options, work_dir=tmp_path, per_class=tmp_path / "classes.csv")
    scores, target, files = reference(run_multi_label, data)
    expected = [average_precision(scores[:, i], target[:, i]) for i in range(10)]
    # Of the few images, none has the other classes.
    present = [i for i in range(10) if target[:, i].any()]
    assert 5 < len(present) < 10
    assert metrics["multi-label/mAP"] == pytest.approx(np.mean([expected[i] for i in present]), abs=1e-3)
    rows = list(csv.reader((tmp_path / "classes.csv").open()))[1:]
    assert [row[0] for row in rows] == list(CLASSES)
    assert [i for i, row in enumerate(rows) if row[1]] == present
    assert [float(rows[i][1]) for i in present] == pytest.approx([expected[i] for i in present], abs=0.006)
    images = [Image.open(file).convert("RGB") for file in files]
    for given in ({"config": CONFIG, "options": options}, {"model": "soft_pico"}):
        found = load_predictor(checkpoint=checkpoint, topk=10, device="cpu", **given)(images)
        for result, row in zip(found, scores, strict=True):
            assert result.scores == pytest.approx([row[i].item() for i in result.indices], abs=1e-5)
            assert result.scores == sorted(result.scores, reverse=True)


def test_a_single_class_has_a_row(data, options, tmp_path):
    torch.save(network(num_classes=1).state_dict(), tmp_path / "weights.pth")
    (tmp_path / "val").symlink_to(data / "val")
    (tmp_path / "val.txt").write_text("".join(f"{path.name} shape\n" for path in (data / "val").iterdir()))
    (tmp_path / "classes.txt").write_text("shape")
    given = {**options, "data_root": str(tmp_path), "num_classes": 1}
    files = {"per_class": tmp_path / "classes.csv", "work_dir": tmp_path}
    evaluate(CONFIG, str(tmp_path / "weights.pth"), options=given, **files)
    assert files["per_class"].read_text().splitlines()[1] == "shape,100.00"


def test_classes_without_images_are_left_out_of_a_mean(monkeypatch):
    said = []
    monkeypatch.setattr(metrics, "print_log", lambda sentence, logger: said.append(sentence))
    generator = torch.Generator().manual_seed(3)
    scores, target = torch.rand(7, 4, generator=generator), torch.eye(4)[[0, 1, 0, 0, 1, 3, 3]]
    samples = [DataSample().set_pred_score(s).set_gt_score(t).to_dict() for s, t in zip(scores, target, strict=True)]
    expected = [average_precision(scores[:, i], target[:, i].bool()) for i in (0, 1, 3)]
    found = {}
    for average in ("macro", None):
        metric = MMPRETRAIN_METRICS.build({"type": "AveragePrecision", "average": average})
        metric.process(None, samples)
        found |= metric.evaluate(7)
    assert found["multi-label/mAP"] == pytest.approx(sum(expected) / 3, abs=1e-4)
    classwise = found["multi-label/AP_classwise"]
    assert math.isnan(classwise.pop(2))
    assert classwise == pytest.approx(expected, abs=1e-4)
    assert ["1 of 4 classes" in sentence for sentence in said] == [True, True]


def test_it_resumes_exactly(run_multi_label, options, tmp_path):
    train(CONFIG, options=options, work_dir=tmp_path, resume=str(run_multi_label / "epoch_1.pth"))
    assert_same_state(run_multi_label / "epoch_2.pth", tmp_path / "epoch_2.pth", "state_dict", "optimizer")


TAUGHT = {"model.type": "DistillClassifier", "model.teacher": {"model_name": "soft_pico", "pretrained": True}}


@pytest.mark.parametrize("given", [{"model.multi_label": False}, TAUGHT, {"model.type": "MesaClassifier"}], ids=str)
def test_a_model_for_one_label(given, options, tmp_path):
    with pytest.raises(ValueError, match="multi_label"):
        train(CONFIG, options={**options, **given}, work_dir=tmp_path)


@pytest.mark.parametrize("arguments", [{"data_root": "data"}, {"confusion": "table.csv"}], ids=str)
def test_what_a_test_cannot_do(run_multi_label, options, arguments):
    with pytest.raises(ValueError, match="several labels"):
        evaluate(CONFIG, str(run_multi_label / "epoch_1.pth"), options=options, **arguments)
