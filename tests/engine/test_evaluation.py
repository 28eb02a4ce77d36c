"""A test of a checkpoint or a timm model, against the same computed with a loop, torch and timm."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image
from timm.data import create_transform

from soft_vit.datasets import CLASSES, ShapeImages
from soft_vit.engine import UserError, evaluate
from soft_vit.weights.folders import RESOURCES

DEMO = Path(__file__).parents[2] / "configs" / "demo" / "soft_pico_shapes.py"
MODEL = {"num_classes": 10, "img_size": 32, "depths": (1, 1, 1, 1)}
OPTIONS = {
    "model.img_size": 32,
    "model.depths": [1, 1, 1, 1],
    "test_dataloader.dataset.length": 37,
    "test_dataloader.dataset.size": 32,
    "test_dataloader.batch_size": 16,
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Without the description of the machine, which takes longer than these tests."""
    monkeypatch.setattr("mmengine.runner.runner.collect_env", dict)


def network(name: str = "soft_pico", seed: int = 0, **kwargs) -> torch.nn.Module:
    """Weights far enough from the start that classes differ."""
    torch.manual_seed(seed)
    model = timm.create_model(name, **(MODEL | kwargs)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2)
    return model


@pytest.fixture(scope="module")
def models() -> dict[str, torch.nn.Module]:
    return {"averaged": network(seed=0), "plain": network(seed=1)}


@pytest.fixture(scope="module")
def checkpoint(models, tmp_path_factory) -> str:
    """As EMAHook writes one: the average in front."""
    plain = {f"module.{name}": value for name, value in models["plain"].state_dict().items()}
    path = tmp_path_factory.mktemp("checkpoint") / "epoch_1.pth"
    content = {"state_dict": models["averaged"].state_dict(), "ema_state_dict": {**plain, "steps": torch.tensor(3)}}
    torch.save({**content, "meta": {"dataset_meta": {"classes": CLASSES}}}, path)
    return str(path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """Images of four classes, larger than the model's and not square, in folders `named` and `numbered`."""
    root = tmp_path_factory.mktemp("folders")
    images = ShapeImages(40, "test", size=(50, 71))
    for i in (i for i in range(40) if images.label(i) in (0, 3, 4, 9)):
        sample = images[i]
        for folder in (f"named/{CLASSES[sample.label]}", f"numbered/{sample.label}"):
            (root / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(sample.image).save(root / folder / f"{i:03}.png")
    return root


def by_the_book(logits: torch.Tensor, labels: list[int]) -> dict[str, float]:
    x, y = logits.detach().double().numpy(), np.array(labels)
    order = np.argsort(-x, axis=1)
    log_p = x - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)) - x.max(1, keepdims=True)
    return {
        "accuracy/top1": 100 * np.mean(order[:, 0] == y),
        "accuracy/top5": 100 * np.mean((order[:, :5] == y[:, None]).any(1)),
        "cross_entropy": -np.mean(log_p[np.arange(len(y)), y]),
        "images": len(y),
    }


def shapes(length: int = 37) -> tuple[torch.Tensor, list[int]]:
    """The demo's test images, normalised as its config says."""
    images = ShapeImages(length, "test", size=32)
    pixels = torch.stack([torch.from_numpy(images[i].image).permute(2, 0, 1) for i in range(length)])
    return (pixels - 127.5) / 64, [images.label(i) for i in range(length)]


def tree(folder: Path, size: int, crop_pct: float, mean: float = 127.5 / 255, std: float = 64 / 255, how="bicubic"):
    """Images of a folder as timm prepares them, and the names of their folders."""
    transform = create_transform(size, interpolation=how, crop_pct=crop_pct, mean=(mean,) * 3, std=(std,) * 3)
    paths = sorted(folder.glob("*/*.png"))
    return torch.stack([transform(Image.open(path)) for path in paths]), [path.parent.name for path in paths]


def agrees(metrics: dict, expected: dict) -> bool:
    """Logits in fp32 in other batches differ by rounding, which is no change of rank here."""
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=2e-4)
    return True


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


def test_several_views_of_an_image(checkpoint, models, tmp_path):
    path = tmp_path / "config.py"
    path.write_text(
        f"""
_base_ = [{str(DEMO)!r}]
test_pipeline = [
    dict(type="LoadedImage"),
    dict(
        type="TestTimeAug",
        transforms=[[dict(type="RandomFlip", prob=0.0), dict(type="RandomFlip", prob=1.0)], [dict(type="PackInputs")]],
    ),
]
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
model = dict(
    _delete_=True,
    type="AverageClsScoreTTA",
    module=dict(
        type="TimmProgressClassifier", model_name="soft_pico", num_classes=10, img_size=32, depths=[1, 1, 1, 1],
        data_preprocessor=dict(type="ClsDataPreprocessor", mean=[127.5] * 3, std=[64.0] * 3, to_rgb=False),
    ),
)
"""
    )
    options = {name: value for name, value in OPTIONS.items() if not name.startswith("model.")}
    metrics = evaluate(path, checkpoint, work_dir=tmp_path, options=options)
    images, labels = shapes()
    scores = sum(models["averaged"](x).softmax(1) for x in (images, images.flip(-1))) / 2
    assert agrees(metrics, by_the_book(scores.log(), labels))


FLIPS = """
tta_pipeline = [
    dict(type="LoadedImage"),
    dict(type="TestTimeAug", transforms=[
        [dict(type="RandomFlip", prob=prob, direction="vertical") for prob in (0.0, 1.0)],
        {resizing}
        [dict(type="PackInputs")],
    ]),
]
tta_model = dict(type="BestOfViews")
custom_imports = dict(imports=["soft_vit.engine", "best_of_views"], allow_failed_imports=False)
"""
BEST = """
from mmpretrain.models import AverageClsScoreTTA
from soft_vit.registry import MODELS, register

@register(MODELS)
class BestOfViews(AverageClsScoreTTA):
    def _merge_single_sample(self, views):
        best = views[0].pred_score.maximum(views[1].pred_score)
        return views[0].new().set_pred_score(best / best.sum())
"""


def views_config(folder: Path, resizing: str = "") -> Path:
    (folder / "best_of_views.py").write_text(BEST)
    (folder / "config.py").write_text(f"_base_ = [{str(DEMO)!r}]" + FLIPS.format(resizing=resizing))
    return folder / "config.py"


def mean_score(model, images: torch.Tensor) -> torch.Tensor:
    return sum(model(x).softmax(1) for x in (images, images.flip(-1))) / 2


def test_mean_of_an_image_and_its_mirror_image(checkpoint, models, tmp_path):
    # A model's own preprocessor comes before that of the config, with one view or with two.
    options = {**OPTIONS, "data_preprocessor": {"type": "ClsDataPreprocessor", "mean": [0.0] * 3, "std": [1.0] * 3}}
    options["model.data_preprocessor"] = {"type": "ClsDataPreprocessor", "mean": [127.5] * 3, "std": [64.0] * 3}
    out = tmp_path / "out.json"
    metrics = evaluate(DEMO, checkpoint, tta=True, ema=False, out=out, work_dir=tmp_path, options=options)
    images, labels = shapes()
    assert agrees(metrics, by_the_book(mean_score(models["plain"], images).log(), labels))
    assert json.loads(out.read_text())["tta"] is True


def test_views_and_merging_of_the_config(checkpoint, models, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    metrics = evaluate(views_config(tmp_path), checkpoint, tta=True, work_dir=tmp_path, options=OPTIONS)
    images, labels = shapes()
    best = torch.stack([models["averaged"](x).softmax(1) for x in (images, images.flip(-2))]).amax(0)
    assert agrees(metrics, by_the_book(best.log(), labels))


@pytest.mark.parametrize(
    ("resizing", "options", "message"),
    [
        (
            "[dict(type='ResizeEdge', scale=s) for s in (32, 40)],",
            {},
            "by ResizeEdge in TestTimeAug, and the test asks",
        ),
        ("", {"tta_pipeline": [], "test_dataloader.dataset.pipeline": []}, "have no pipeline whose last step"),
        ("", {"model_wrapper_cfg.type": "ShardedDataParallel"}, "set model_wrapper_cfg=None beside --tta"),
    ],
)
def test_views_that_cannot_be_shown(checkpoint, tmp_path, monkeypatch, resizing, options, message):
    monkeypatch.syspath_prepend(tmp_path)
    config = views_config(tmp_path, resizing)
    with pytest.raises(UserError, match=message):
        evaluate(config, checkpoint, tta=True, img_size=32, work_dir=tmp_path, options={**OPTIONS, **options})


@pytest.mark.parametrize("model", ["checkpoint", "soft_pico"])
def test_views_of_another_crop_in_a_folder(checkpoint, models, folders, tmp_path, model):
    """The name of a timm model brings a normalisation of its own."""
    there = [0, 3, 4, 9]
    given = {"img_size": 32, "crop_pct": 0.8, "data_root": folders / "numbered", "classes": list_of_classes(tmp_path)}
    if model == "checkpoint":
        images, names = tree(folders / "numbered", 32, 0.8)
    else:
        torch.save(models["averaged"].state_dict(), tmp_path / "weights.pth")
        given["weights"] = str(tmp_path / "weights.pth")
        cfg = timm.get_pretrained_cfg(model)
        images, names = tree(folders / "numbered", 32, 0.8, cfg.mean[0], cfg.std[0])
    metrics = evaluate(
        DEMO,
        checkpoint if model == "checkpoint" else model,
        tta=True,
        **given,
        work_dir=tmp_path,
        options={**OPTIONS, "model.num_classes": 10},
    )
    score = mean_score(models["averaged"], images)[:, there]
    assert agrees(metrics, by_the_book(score.log(), [there.index(int(name)) for name in names]))


def test_the_config_of_the_training_stays(checkpoint, tmp_path):
    (tmp_path / DEMO.name).write_text("trained = True")
    evaluate(DEMO, checkpoint, tta=True, work_dir=tmp_path, options=OPTIONS)
    assert (tmp_path / DEMO.name).read_text() == "trained = True"
    assert Config.fromfile(tmp_path / "soft_pico_shapes_test.py").model.type == "mmpretrain.AverageClsScoreTTA"


@pytest.mark.parametrize(("ema", "which"), [(True, "averaged"), (False, "plain")])
def test_either_weights(checkpoint, models, tmp_path, ema, which):
    # MMEngine's own hook would exchange them.
    options = {**OPTIONS, "custom_hooks": [{"type": "EMAHook"}, {"type": "EMAEvalHook"}]}
    metrics = evaluate(DEMO, checkpoint, ema=ema, work_dir=tmp_path, options=options)
    images, labels = shapes()
    assert agrees(metrics, by_the_book(models[which](images), labels))


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


def list_of_classes(folder: Path) -> Path:
    path = folder / "classes.txt"
    path.write_text("\n".join(CLASSES) + "\n")
    return path


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
        options={**options, "model.num_classes": 1000, "model.dynamic_img_size": False},
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
        options={"test_dataloader.num_workers": 0, "model.num_classes": 10},
    )
    model = timm.create_model("soft_pico.shapes", pretrained=True).eval()
    cfg = model.pretrained_cfg
    images, names = tree(folders / "numbered", 64, cfg["crop_pct"], cfg["mean"][0], cfg["std"][0], cfg["interpolation"])
    there = [0, 3, 4, 9]
    with torch.no_grad():
        expected = by_the_book(model(images)[:, there], [there.index(int(name)) for name in names])
    assert agrees(metrics, expected)


@pytest.mark.parametrize(
    ("model", "arguments", "error", "message"),
    [
        ("none.pth", {}, FileNotFoundError, "There is no checkpoint none.pth, and timm has no model of that name"),
        ("{checkpoint}", {"weights": "x.pth"}, UserError, "is a checkpoint with weights of its own"),
        ("{checkpoint}", {"pretrained": False}, UserError, "is a checkpoint with weights of its own"),
        ("{checkpoint}", {"img_size": 0}, UserError, "img_size is 0"),
        ("{checkpoint}", {"crop_pct": 1.5}, UserError, "crop_pct is 1.5"),
        ("{checkpoint}", {"img_size": 31}, UserError, "PyramidViT does not take images of 31 x 31"),
        ("{checkpoint}", {"data_root": "nowhere"}, FileNotFoundError, "There is no folder nowhere"),
        ("{checkpoint}", {"data_root": "{folders}"}, UserError, "'named', a folder of .*, is none of the 10 classes"),
        (
            "{checkpoint}",
            {"data_root": "{folders}/named", "classes": "no.txt"},
            FileNotFoundError,
            "no list of classes",
        ),
        ("test_vit", {"weights": "x.pth"}, FileNotFoundError, "There is no checkpoint x.pth"),
        ("test_vit", {"weights": "https://127.0.0.1:9/x.pth"}, UserError, "x.pth cannot be fetched"),
        ("resnet18.none", {}, UserError, r"Invalid pretrained tag \(none\) for resnet18; choose a name of timm"),
        ("soft_norm_pico", {}, UserError, "No pretrained weights exist for soft_norm_pico"),
        (
            "test_vit",
            {"pretrained": False, "img_size": 100},
            UserError,
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
    with pytest.raises(UserError, match=message):
        evaluate("configs/none.py", "soft_pico", **{name: tmp_path / path})


@pytest.mark.parametrize(
    ("state", "message"),
    [({"num_classes": 7}, "belongs to another model.*head"), ({"depths": (1, 1, 2, 1)}, "belongs to another model")],
)
def test_checkpoint_of_another_model(tmp_path, state, message):
    torch.save({"state_dict": network(**state).state_dict()}, tmp_path / "other.pth")
    with pytest.raises(UserError, match=message):
        evaluate(DEMO, str(tmp_path / "other.pth"), work_dir=tmp_path, options=OPTIONS)


def test_a_config_without_test_images(tmp_path):
    with pytest.raises(UserError, match="has no test_dataloader"):
        evaluate(DEMO, "resnet18", work_dir=tmp_path, options={"test_dataloader": None})


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("epoch_1.pth", {"img_size": 64, "per_class": "a.csv"}, "--img-size, --per-class are for classification"),
        ("resnet18", {}, "resnet18 is a timm model"),
        ("epoch_1.pth", {"tta": True}, "boxes.py sets no tta_model and no tta_pipeline, and flipping images is"),
    ],
)
def test_only_classifiers_are_asked_for_classes(tmp_path, model, arguments, message):
    path = tmp_path / "boxes.py"
    path.write_text(
        'model = dict(type="A")\ntest_evaluator = dict(type="CocoAP")\ntest_dataloader = dict(dataset=dict())'
    )
    with pytest.raises(UserError, match=message):
        evaluate(path, model, work_dir=tmp_path, **arguments)


def test_average_that_is_not_there(tmp_path):
    torch.save({"state_dict": network().state_dict()}, tmp_path / "plain.pth")
    with pytest.raises(UserError, match="no averaged weights"):
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
