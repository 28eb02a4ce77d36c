"""Predictors show images to a model as its training showed its test images, and refuse what does not fit."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from engine.runs import CONFIGS, DEMO
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import MODELS
from mmengine.runner import Runner
from mmpretrain.models import ClsDataPreprocessor
from PIL import Image
from timm.data import create_transform

from soft_vit.data import CLASSES, ShapeImages, draw_shape
from soft_vit.data.demo.trees import make_tree
from soft_vit.data.images import BadImage
from soft_vit.engine.config import resolve
from soft_vit.engine.data.naflex import NaFlexDataPreprocessor
from soft_vit.engine.models.classifier import TimmTrainClassifier
from soft_vit.engine.models.notes import normalisation_of, spec_of_run
from soft_vit.predict import ConfigPredictor, TimmPredictor, load_predictor
from soft_vit.predict.predictors import sum_of_weights
from soft_vit.weights.files import RESOURCES
from soft_vit.weights.publish import publish
from soft_vit.weights.spec import NOTES_KEY

CROSS = Image.fromarray(draw_shape(seed=1, index=5).image)
SHAPES = RESOURCES / "checkpoints" / "soft_pico.shapes.safetensors"


@pytest.fixture(scope="module")
def ten_classes(tmp_path_factory) -> Path:
    """A checkpoint of the demo, as a run writes it, with averaged weights of another scale."""
    weights = timm.create_model("soft_pico", num_classes=10, img_size=64).state_dict()
    plain = {f"module.{name}": value * 2 for name, value in weights.items()}
    meta = {"dataset_meta": {"classes": CLASSES}}
    path = tmp_path_factory.mktemp("weights") / "demo.pth"
    torch.save({"state_dict": weights, "ema_state_dict": plain, "meta": meta}, path)
    return path


def photo(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def trained(path: Path, num_classes: int = 10, size: tuple[int, int] = (64, 64), **notes) -> Path:
    """Write weights of soft_pico, with notes, to a file."""
    weights = timm.create_model("soft_pico", num_classes=num_classes, img_size=size).state_dict()
    torch.save({"state_dict": weights, "meta": {NOTES_KEY: {"model": "soft_pico", **notes}}}, path)
    return path


def test_sum_of_weights_does_not_depend_on_the_order_of_terms():
    """Which follows from the number of threads."""
    layer = torch.nn.Linear(1001, 999, bias=False)
    layer.weight.data.log_normal_(0, 3, generator=torch.Generator().manual_seed(1))
    before, layer.weight.data = sum_of_weights(layer), layer.weight.data.flip(0)
    assert sum_of_weights(layer) == before


MISTAKES = [
    ({"model": "test_vit", "config": DEMO}, ValueError, "--model"),
    ({"config": DEMO, "checkpoint": "none.pth"}, FileNotFoundError, "none.pth"),
    ({"model": "soft_tiny", "checkpoint": "{file}"}, ValueError, "soft_tiny"),
    ({"model": "test_vit", "pretrained": False, "img_size": 7}, ValueError, "7 x 7"),
    ({"model": "test_vit", "options": {"a": 1}}, ValueError, "--cfg-options"),
    ({"model": "test_vit", "topk": -1}, ValueError, "topk"),
    ({"config": DEMO, "checkpoint": "{file}", "options": {"model.model_name": "soft_tiny"}}, ValueError, " fit "),
    ({"config": DEMO, "checkpoint": "{file}", "options": {"model.num_classes": 7}}, ValueError, "head.weight"),
]


@pytest.mark.parametrize(("arguments", "error", "words"), MISTAKES)
def test_mistake_is_one_sentence(ten_classes, arguments, error, words):
    given = {key: str(ten_classes) if value == "{file}" else value for key, value in arguments.items()}
    with pytest.raises(error, match=words) as caught:
        load_predictor(**given)
    assert "\n" not in str(caught.value)


def test_timm_model_sees_what_timm_shows_it():
    predictor = TimmPredictor("test_vit", pretrained=False)
    images = [photo(200, 333), photo(50, 41)]
    cfg = timm.get_pretrained_cfg("test_vit")
    given = {key: getattr(cfg, key) for key in ("input_size", "mean", "std", "interpolation", "crop_pct")}
    with torch.no_grad():
        scores = predictor.model(torch.stack(list(map(create_transform(**given), images)))).softmax(1)
    for result, expected in zip(predictor(images), scores, strict=True):
        best = expected.topk(5)
        assert result.indices == best.indices.tolist()
        assert result.scores == pytest.approx(best.values.tolist())
    assert predictor.names[281] == "tabby, tabby cat"
    # Another mode is converted by its range, or refused.
    grey = images[0].convert("L")
    for predictor.bits, factor in ((None, 257), (12, 16), (15, 128)):
        wide = Image.fromarray(np.asarray(grey).astype(np.uint16) * factor)
        assert predictor([wide])[0].scores == predictor([grey])[0].scores
    with pytest.raises(BadImage, match="unknown range"):
        predictor([images[0].convert("F")])


@pytest.mark.parametrize("img_size", [None, (96, 64)])
def test_default_in_place_of_a_missing_value_is_noted(ten_classes, img_size):
    """The state dict itself notes the size of its images, 64 pixels."""
    predictor = TimmPredictor("soft_pico", checkpoint=ten_classes, img_size=img_size)
    assert [("the normalisation" in note) for note in predictor.notes] == [True]
    assert predictor.names == list(CLASSES)
    assert predictor.transform(photo(200, 300)).shape == (3, *(img_size or (64, 64)))


NORMALISED = [(ClsDataPreprocessor(), 0, 1 / 255), (NaFlexDataPreprocessor(std=0.25), 0.5, 0.25)]


@pytest.mark.parametrize(("prepared", "mean", "std"), NORMALISED)
def test_the_normalisation_is_that_of_the_preprocessor(prepared, mean, std):
    found = normalisation_of(SimpleNamespace(data_preprocessor=prepared))
    assert found == {"mean": pytest.approx((mean,) * 3), "std": pytest.approx((std,) * 3)}


def test_a_run_shows_its_images_not_those_of_published_tests(tmp_path):
    """Of a model that was published with tests at 192 pixels."""
    model = TimmTrainClassifier("test_mambaout", num_classes=3)
    crop = {"type": "TimmEvalCrop", "img_size": 64, "crop_pct": 0.7}
    cfg = Config({"test_dataloader": {"dataset": {"type": "ImageTree", "pipeline": [crop]}}})
    data = SimpleNamespace(dataset=SimpleNamespace(metainfo={"classes": "abc"}))
    spec = spec_of_run(SimpleNamespace(cfg=cfg, model=model, train_dataloader=data))
    torch.save({"state_dict": model.state_dict(), "meta": {NOTES_KEY: spec.to_dict()}}, tmp_path / "a.pth")
    shown = TimmPredictor("test_mambaout", checkpoint=tmp_path / "a.pth").data
    how = {"tag": "own", "licence": "mit", "mean": (0.5,) * 3, "std": (0.5,) * 3}
    publish(tmp_path / "a.pth", tmp_path, **how, hf_dir=tmp_path / "hub")
    assert TimmPredictor(f"local-dir:{tmp_path}/hub").data["input_size"] == shown["input_size"]
    assert (shown["input_size"], shown["crop_pct"]) == ((3, 64, 64), 0.7)


OTHERS = [("soft_norm_pico", {}, "got soft_norm_pico"), ("soft_pico", {"options": {"depths": 3}}, "depths|int")]
OTHERS += [("soft_pico", {"options": {"img_size": (64, 0)}}, r"\(64, 0\)")]
OTHERS += [("soft_pico", {"num_classes": 0}, "must be a classifier")]


@pytest.mark.parametrize(("name", "notes", "words"), OTHERS)
def test_checkpoint_of_another_model_is_refused(name, notes, words, tmp_path):
    with pytest.raises(ValueError, match=words) as caught:
        TimmPredictor(name, checkpoint=trained(tmp_path / "a.pth", **notes))
    assert "\n" not in str(caught.value)


def test_classifier_of_a_config_sees_what_its_test_shows_it(ten_classes, tmp_path):
    config = resolve(DEMO)
    config.test_dataloader.dataset.length = 3
    # Published weights of soft_pico do not exist, so loading them would raise.
    predictor = ConfigPredictor(DEMO, ten_classes, topk=10, options={"model.pretrained": True})
    # The averaged weights come first.
    head = torch.load(ten_classes, weights_only=True)["state_dict"]["head.weight"]
    assert torch.equal(predictor.model.model.head.weight, head)
    # Its transforms are found in the scope that the predictor has set.
    with torch.no_grad():
        expected = predictor.model.test_step(next(iter(Runner.build_dataloader(config.test_dataloader))))
    found = predictor([Image.fromarray(sample.image) for sample in ShapeImages(3, "test", size=64)])
    for result, sample in zip(found, expected, strict=True):
        assert result.scores == pytest.approx(sample.pred_score[result.indices].tolist(), abs=1e-6)
        assert result.names == [CLASSES[index] for index in result.indices]
    assert len(predictor([photo(100, 200), photo(33, 31)])) == 2
    # Of 12 bits, in a file of 16.
    predictor.bits, grey = 12, CROSS.convert("L")
    assert predictor([Image.fromarray(np.asarray(grey).astype(np.uint16) * 16)]) == predictor([grey])
    assert len(ConfigPredictor(DEMO, ten_classes, img_size=(96, 64))([photo(100, 200)])) == 1
    # The images of a wrapped data set are prepared like those of the data set itself.
    config.test_dataloader.dataset = dict(type="ConcatDataset", datasets=[config.test_dataloader.dataset])
    config.dump(tmp_path / "config.py")
    assert ConfigPredictor(tmp_path / "config.py", ten_classes, topk=10)([CROSS]) == predictor([CROSS])


def test_pipeline_that_loads_by_mmcv_gets_its_order_of_channels(ten_classes, tmp_path):
    config = resolve(DEMO)
    crop = [dict(type="ResizeEdge", scale=64), dict(type="CenterCrop", crop_size=64)]
    transforms = [dict(type="LoadImageFromFile"), *crop, dict(type="PackInputs")]
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
def dense(request, tmp_path_factory) -> tuple[str, Path, Path, ConfigPredictor]:
    """Task, config on a generated tree, a checkpoint of random weights, and the predictor of both."""
    task, folder = request.param, tmp_path_factory.mktemp(request.param)
    # Random weights find only objects below the usual score.
    layout, name, options = {
        "detection": ("coco", "mask_rcnn", "box_score_thresh=0.0, box_detections_per_img=5"),
        "segmentation": ("ade", "upernet", "test_cfg=dict(stride=64, scales=(1.0,), flip=['vertical'])"),
    }[task]
    make_tree(folder / "data", layout, train=1, val=2, size=(96, 130), seed=0)
    path = folder / "config.py"
    path.write_text(f'_base_ = ["{CONFIGS / task / f"{name}_soft_pico_shapes.py"}"]\nmodel = dict({options})\n')
    config = resolve(path, {"test_dataloader.dataset.data_root": str(folder / "data")})
    config.dump(path)
    model = MODELS.build(dict(config.model, data_preprocessor=config.get("data_preprocessor")))
    meta = {"dataset_meta": {"classes": ["background"] * (task == "segmentation") + list(CLASSES)}}
    torch.save({"state_dict": model.state_dict(), "meta": meta}, folder / "weights.pth")
    return task, path, folder / "weights.pth", ConfigPredictor(path, folder / "weights.pth", score_thr=0.0)


def test_dense_model_sees_what_its_test_shows_it(dense):
    task, path, weights, predictor = dense
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
            assert result.names[1:] == list(CLASSES)
    if task == "segmentation":
        # Rows of a killed prediction do not count for another normalisation.
        assert ConfigPredictor(path, weights, options={"data_preprocessor.mean": [1, 2, 3]}).key != predictor.key
    with pytest.raises(ValueError, match="got 64"):
        ConfigPredictor(path, weights, img_size=64)
    for source in ({"model": "soft_pico"}, {"config": DEMO}):
        with pytest.raises(ValueError, match="got a detector or segmentor"):
            load_predictor(**source, checkpoint=weights)


def test_result_does_not_depend_on_the_other_images(dense):
    """Padding to the size of a neighbour would reach every pixel through attention."""
    task, predictor, images = dense[0], dense[-1], [photo(63, 50), photo(33, 120)]
    for result, image in zip(predictor(images), images, strict=True):
        (alone,) = predictor([image])
        if task == "detection":
            np.testing.assert_allclose(result.scores, alone.scores, rtol=1e-5)
            np.testing.assert_allclose(result.boxes, alone.boxes, rtol=1e-4, atol=1e-3)
        else:
            np.testing.assert_array_equal(result.classes, alone.classes)
    # A large image is noted at any place in its batch.
    predictor([images[0], photo(640, 640)])
    assert ["640 x 640" in note for note in predictor.notes] == [True] * (task == "segmentation")
