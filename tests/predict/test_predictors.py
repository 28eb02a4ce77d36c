"""Predictors show images to a model as its training showed its test images, and refuse what does not fit."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import MODELS
from mmengine.runner import Runner
from PIL import Image
from timm.data import create_transform

from soft_vit.data import CLASSES, ShapeImages, draw_shape
from soft_vit.data.demo.trees import make_tree
from soft_vit.engine.config import resolve
from soft_vit.engine.models.notes import cfg_of_config
from soft_vit.predict import ConfigPredictor, TimmPredictor, load_predictor
from soft_vit.predict.predictors import readable_names
from soft_vit.weights.files import RESOURCES
from soft_vit.weights.read import NOTES_KEY, Notes

CONFIGS = Path(__file__).parents[2] / "configs"
DEMO = CONFIGS / "demo" / "soft_pico_shapes.py"
CROSS = Image.fromarray(draw_shape(seed=1, index=5).image)
SHAPES = RESOURCES / "checkpoints" / "soft_pico.shapes.safetensors"


@pytest.fixture(scope="module")
def ten_classes(tmp_path_factory) -> Path:
    """A checkpoint of the demo, as a run writes it, with averaged weights of another scale."""
    torch.manual_seed(0)
    weights = timm.create_model("soft_pico", num_classes=10, img_size=64).state_dict()
    plain = {f"module.{name}": value * 2 for name, value in weights.items()}
    meta = {"dataset_meta": {"classes": CLASSES}}
    path = tmp_path_factory.mktemp("weights") / "demo.pth"
    torch.save({"state_dict": weights, "ema_state_dict": plain, "meta": meta}, path)
    return path


def photo(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, ValueError, "--model"),
        ({"model": "test_vit", "config": DEMO}, ValueError, "--model"),
        ({"config": DEMO}, ValueError, "--checkpoint"),
        ({"config": DEMO, "checkpoint": "none.pth"}, FileNotFoundError, "none.pth"),
        ({"config": "none.py", "checkpoint": "{checkpoint}"}, FileNotFoundError, "none.py"),
        ({"model": "resnet_50"}, ValueError, "did you mean resnet50"),
        ({"model": "zzzzzz"}, ValueError, "timm.list_models"),
        ({"model": "soft_norm_pico"}, ValueError, "soft_norm_pico"),
        ({"model": "soft_tiny", "checkpoint": "{checkpoint}"}, ValueError, "soft_tiny"),
        ({"model": "test_vit", "checkpoint": "{checkpoint}"}, ValueError, "do not fit"),
        ({"model": "test_vit", "pretrained": False, "img_size": 7}, ValueError, "7 x 7"),
        ({"model": "test_vit", "pretrained": False, "img_size": 0}, ValueError, "0 x 0"),
        ({"model": "test_vit", "pretrained": False, "device": "gpu"}, ValueError, "'gpu'"),
        ({"model": "test_vit", "options": {"a": 1}}, ValueError, "--cfg-options"),
        (
            {"config": DEMO, "checkpoint": "{checkpoint}", "options": {"model.model_name": "soft_tiny"}},
            ValueError,
            "do not fit",
        ),
        (
            {"config": DEMO, "checkpoint": "{checkpoint}", "options": {"model.num_classes": 7}},
            ValueError,
            "head.weight",
        ),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_mistake_is_one_sentence(ten_classes, arguments, error, words):
    given = {key: str(ten_classes) if value == "{checkpoint}" else value for key, value in arguments.items()}
    with pytest.raises(error, match=words) as caught:
        load_predictor(**given)
    assert "\n" not in str(caught.value)


def test_timm_model_sees_what_timm_shows_it():
    torch.manual_seed(0)
    predictor = TimmPredictor("test_vit", pretrained=False)
    images = [photo(200, 333), photo(50, 41)]
    found = predictor(images)
    config = timm.get_pretrained_cfg("test_vit")
    transform = create_transform(
        config.input_size,
        mean=config.mean,
        std=config.std,
        interpolation=config.interpolation,
        crop_pct=config.crop_pct,
    )
    with torch.no_grad():
        scores = predictor.model(torch.stack([transform(image) for image in images])).softmax(1)
    for result, expected in zip(found, scores, strict=True):
        best = expected.topk(5)
        assert result.indices == best.indices.tolist()
        assert result.scores == pytest.approx(best.values.tolist())
    assert predictor.names[281] == "tabby, tabby cat"


@pytest.mark.parametrize(("img_size", "words"), [(None, "size and normalisation"), (64, "the normalisation")])
def test_default_in_place_of_a_missing_value_is_noted(ten_classes, img_size, words):
    predictor = TimmPredictor("soft_pico", checkpoint=ten_classes, img_size=img_size)
    notes, side = predictor.notes, img_size or 224
    assert words in notes[0]
    # From 64 to 224 pixels.
    assert ["resampled" in note for note in notes[1:]] == ([True] if img_size is None else [])
    assert predictor.names == list(CLASSES)
    assert predictor.transform(photo(200, 300)).shape == (3, side, side)


def noted(**cfg) -> dict:
    """The meta of a checkpoint of soft_pico that notes this of its images."""
    return {NOTES_KEY: Notes("soft_pico", {"img_size": list(cfg["input_size"][1:])}, cfg).to_dict()}


@pytest.mark.parametrize("source", ["recorded file", "checkpoint of a training"])
def test_checkpoint_says_how_its_images_were(source, tmp_path):
    expected = TimmPredictor("soft_pico.shapes")
    path = tmp_path / ("a.safetensors" if source == "recorded file" else "a.pth")
    if source == "recorded file":
        shutil.copy(SHAPES, path)
    else:
        meta = noted(**cfg_of_config(resolve(DEMO)), label_names=CLASSES)
        torch.save({"state_dict": expected.model.state_dict(), "meta": meta}, path)
    predictor = TimmPredictor("soft_pico", checkpoint=path)
    assert predictor.notes == []
    assert predictor.names == list(CLASSES)
    (found,), (right,) = predictor([CROSS]), expected([CROSS])
    assert found == right
    assert found.names[0] == "cross"
    assert found.scores[0] > 0.99


def test_sides_of_a_checkpoints_images(tmp_path):
    meta = noted(input_size=(3, 64, 96), mean=(0, 0, 0), std=(1, 1, 1))
    weights = timm.create_model("soft_pico", num_classes=3, img_size=(64, 96)).state_dict()
    torch.save({"state_dict": weights, "meta": meta}, tmp_path / "a.pth")
    # Its grid is not square, so that it fits no other size.
    predictor = TimmPredictor("soft_pico", checkpoint=tmp_path / "a.pth")
    assert predictor.notes == []
    assert predictor.transform(photo(80, 90)).shape == (3, 64, 96)
    assert predictor.transform(Image.new("RGB", (90, 80), "white")).unique().tolist() == [1.0]


def training_checkpoint(path: Path, **notes) -> Path:
    """A checkpoint that notes a model with options."""
    torch.manual_seed(0)
    weights = timm.create_model("soft_pico", num_classes=10, img_size=64).state_dict()
    torch.save({"state_dict": weights, "meta": {NOTES_KEY: {"model": "soft_pico", **notes}}}, path)
    return path


def test_options_are_those_of_the_training(tmp_path):
    path = training_checkpoint(tmp_path / "a.pth", cfg={"input_size": (3, 64, 64)}, options={"newton_iters": 1})
    images = torch.randn(2, 3, 64, 64)
    model = TimmPredictor("soft_pico", checkpoint=path).model
    with torch.no_grad():
        found = model(images)
        expected = []
        for options in ({"newton_iters": 1}, {}):
            other = timm.create_model("soft_pico", num_classes=10, img_size=64, **options).eval()
            other.load_state_dict(model.state_dict())
            expected.append(other(images))
    assert torch.equal(found, expected[0])
    assert not torch.equal(found, expected[1])


@pytest.mark.parametrize(
    ("name", "notes", "words"),
    [
        ("soft_norm_pico", {}, "got .soft_norm."),
        ("soft_pico", {"model": "soft_norm_pico"}, "got .soft."),
        ("soft_pico", {"options": {"inverse": "magic"}}, "magic"),
        ("soft_pico", {"options": {"depths": 3}}, "depths|int"),
        ("soft_pico", {"cfg": {"input_size": (3, 7, 7)}}, "7 x 7"),
        ("soft_pico", {"cfg": {"input_size": (3, 64, 7)}}, "64 x 7"),
    ],
)
def test_checkpoint_of_another_model_is_refused(name, notes, words, tmp_path):
    with pytest.raises(ValueError, match=words) as caught:
        TimmPredictor(name, checkpoint=training_checkpoint(tmp_path / "a.pth", **notes))
    assert "\n" not in str(caught.value)


def test_synsets_become_words_and_other_names_stay():
    assert readable_names(["n01440764", "n02123045"]) == ["tench, Tinca tinca", "tabby, tabby cat"]
    assert readable_names(["n01440764", "cat"]) == ["tench, Tinca tinca", "cat"]
    assert readable_names(["n99999999"]) == ["n99999999"]


def test_weights_without_a_head_are_refused(ten_classes, tmp_path):
    state = torch.load(ten_classes, weights_only=True)["state_dict"]
    torch.save({name: value for name, value in state.items() if not name.startswith("head.")}, tmp_path / "body.pth")
    with pytest.raises(ValueError, match="classification head"):
        TimmPredictor("soft_pico", checkpoint=tmp_path / "body.pth")


def test_classifier_of_a_config_sees_what_its_test_shows_it(ten_classes):
    config = resolve(DEMO)
    config.test_dataloader.dataset.length = 3
    predictor = ConfigPredictor(DEMO, ten_classes, topk=10)
    # Its transforms are found in the scope that the predictor has set.
    loader = Runner.build_dataloader(config.test_dataloader)
    with torch.no_grad():
        expected = predictor.model.test_step(next(iter(loader)))
    found = predictor([Image.fromarray(sample.image) for sample in ShapeImages(3, "test", size=64)])
    for result, sample in zip(found, expected, strict=True):
        scores = sample.pred_score[result.indices]
        assert result.scores == pytest.approx(scores.tolist(), abs=1e-6)
        assert result.names == [CLASSES[index] for index in result.indices]


def test_averaged_weights_come_first_and_published_ones_never(ten_classes):
    """Published weights of soft_pico do not exist, so loading them would raise."""
    state = torch.load(ten_classes, weights_only=True)["state_dict"]
    model = ConfigPredictor(DEMO, ten_classes, options={"model.pretrained": True}).model.model
    torch.testing.assert_close(model.head.weight, state["head.weight"])


@pytest.mark.parametrize("img_size", [None, 96])
def test_images_of_any_size_fit_a_config_of_drawn_ones(ten_classes, img_size):
    predictor = ConfigPredictor(DEMO, ten_classes, img_size=img_size)
    assert len(predictor([photo(100, 200), photo(33, 31)])) == 2


def test_meta_of_another_kind_names_no_classes(ten_classes, tmp_path):
    content = torch.load(ten_classes, weights_only=True)
    torch.save({**content, "meta": [1]}, tmp_path / "a.pth")
    # Those of the config's data, then.
    assert ConfigPredictor(DEMO, tmp_path / "a.pth").names == list(CLASSES)


def test_pipeline_that_loads_by_mmcv_gets_its_order_of_channels(ten_classes, tmp_path):
    config = resolve(DEMO)
    transforms = [
        dict(type="LoadImageFromFile"),
        dict(type="ResizeEdge", scale=64),
        dict(type="CenterCrop", crop_size=64),
        dict(type="PackInputs"),
    ]
    config.test_dataloader.dataset = dict(type="CustomDataset", data_root="none", pipeline=transforms)
    config.data_preprocessor.to_rgb = True
    config.dump(tmp_path / "config.py")
    photo(70, 81).save(tmp_path / "photo.png")
    predictor = ConfigPredictor(tmp_path / "config.py", ten_classes, topk=10)
    sample = Compose(transforms)({"img_path": str(tmp_path / "photo.png")})
    with torch.no_grad():
        (expected,) = predictor.model.test_step(pseudo_collate([sample]))
    (found,) = predictor([photo(70, 81)])
    assert found.scores == pytest.approx(expected.pred_score[found.indices].tolist(), abs=1e-6)


@pytest.fixture(scope="module", params=["detection", "segmentation"])
def dense(request, tmp_path_factory) -> tuple[str, Path, Path]:
    """Task, config on a generated tree, and a checkpoint of random weights."""
    task, folder = request.param, tmp_path_factory.mktemp(request.param)
    layout, name = {"detection": ("coco", "mask_rcnn"), "segmentation": ("ade", "upernet")}[task]
    make_tree(folder / "data", layout, train=1, val=2, size=(96, 130), seed=0)
    path = folder / "config.py"
    # Random weights find only objects below the usual score.
    detects = task == "detection"
    options = (
        "box_score_thresh=0.0, box_detections_per_img=5"
        if detects
        else "test_cfg=dict(stride=64, scales=(1.0,), flip=['vertical'])"
    )
    path.write_text(f'_base_ = ["{CONFIGS / task / f"{name}_soft_pico_shapes.py"}"]\nmodel = dict({options})\n')
    config = resolve(path)
    config.merge_from_dict({"test_dataloader.dataset.data_root": str(folder / "data")})
    config.dump(path)
    torch.manual_seed(0)
    model = MODELS.build(dict(config.model, data_preprocessor=config.get("data_preprocessor")))
    meta = {"dataset_meta": {"classes": ["background"] * (task == "segmentation") + list(CLASSES)}}
    torch.save({"state_dict": model.state_dict(), "meta": meta}, folder / "weights.pth")
    return task, path, folder / "weights.pth"


def test_dense_model_sees_what_its_test_shows_it(dense):
    task, path, weights = dense
    predictor = ConfigPredictor(path, weights, score_thr=0.0)
    with torch.no_grad():
        loader = Runner.build_dataloader(resolve(path).test_dataloader)
        samples = [sample for batch in loader for sample in predictor.model.test_step(batch)]
    files = sorted(file for file in path.parent.rglob("*.jpg") if "val" in file.parent.name)
    images = [Image.open(file).convert("RGB") for file in files]
    assert len(samples) == len(images) == 2
    for sample, result, image in zip(samples, predictor(images), images, strict=True):
        assert result.task == task
        if task == "detection":
            assert len(result.labels) == 5
            np.testing.assert_allclose(result.boxes, sample.pred_instances.bboxes, rtol=1e-5, atol=1e-3)
            assert result.labels == sample.pred_instances.labels.tolist()
            assert set(result.names) <= set(CLASSES)
            assert result.masks.shape[1:] == image.size[::-1]
            np.testing.assert_array_equal(result.masks, sample.pred_instances.masks)
        else:
            np.testing.assert_array_equal(result.classes, sample.pred_sem_seg.data[0])
            assert result.classes.shape == image.size[::-1]
            assert result.names[1:] == list(CLASSES)
    # Odd sizes in one batch.
    assert len(predictor([photo(63, 50), photo(33, 200)])) == 2


def test_size_of_images_is_that_of_a_dense_config(dense):
    _, path, weights = dense
    with pytest.raises(ValueError, match="got 64"):
        ConfigPredictor(path, weights, img_size=64)
