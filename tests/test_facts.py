"""What is known of a model holds in every place that needs it: class names, labels, sizes, preprocessing, weights."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from engine.runs import CONFIGS, DEMO, NARROW, NARROW_MODEL, scalars
from evaluated import write_images, write_tree
from mmengine.registry import MODELS
from PIL import Image
from safetensors.torch import save_file
from timm.data import ImageNetInfo

import soft_vit
from soft_vit.data import CLASSES, ShapeImages
from soft_vit.data.demo.trees import make_tree
from soft_vit.engine import evaluate, train
from soft_vit.engine.config import resolve
from soft_vit.engine.data.named import NamedImages
from soft_vit.engine.models.notes import normalisation_of
from soft_vit.export import load_export_model
from soft_vit.predict import load_predictor
from soft_vit.weights.files import RESOURCES
from soft_vit.weights.publish import publish
from soft_vit.weights.read import NOTES_KEY

NAMES = ("red", "green", "blue sky")
LABELS = CONFIGS / "demo" / "soft_pico_labels.py"
PHOTO = Image.fromarray(np.random.RandomState(0).randint(0, 256, (64, 64, 3), dtype=np.uint8))


def network(name: str = "soft_pico", outputs: int = 3, size: Any = 64, **options: Any) -> Any:
    torch.manual_seed(0)
    model = timm.create_model(name, img_size=size, num_classes=outputs, **(options or NARROW)).eval()
    for parameter in model.requires_grad_(False).parameters():
        parameter.mul_(2).add_(0.1 * torch.randn_like(parameter))
    return model


def checkpoint(
    folder: Path, outputs: int = 3, several: bool = False, names: tuple[str, ...] = NAMES, **cfg: Any
) -> str:
    """Write weights as a training on images of 64 x 64 pixels does."""
    cfg = {"input_size": (3, 64, 64), "mean": (0.5,) * 3, "std": (64 / 255,) * 3, "crop_pct": 1.0, **cfg}
    notes = {"model": "soft_pico", "options": NARROW, "cfg": {**cfg, "label_names": names}}
    notes["training"] = {"labels of an image": "several"} if several else {}
    meta = {NOTES_KEY: notes, "dataset_meta": {"classes": names}}
    torch.save({"state_dict": network(outputs=outputs).state_dict(), "meta": meta}, folder / "a.pth")
    return str(folder / "a.pth")


def published(path: str | Path, folder: Path) -> tuple[str, str]:
    """Publish a file; return the published file, and the name of its folder for the hub."""
    publish(path, folder / "out", tag="own", licence="mit", hf_dir=folder / "hub")
    return str(next((folder / "out").glob("*.safetensors"))), f"local-dir:{folder / 'hub'}"


@pytest.fixture(scope="module")
def trees(tmp_path_factory) -> Path:
    """Images of the shapes, of other classes, of several labels, and with label maps."""
    root = tmp_path_factory.mktemp("trees")
    for split, count in (("train", 10), ("test", 20)):
        write_images(root / "shapes" / split, ShapeImages(count, "test", size=64), {i: [CLASSES[i]] for i in range(10)})
    write_tree(root / "others", NAMES, train=1, test=1)
    make_tree(root / "labels", "labels", train=2, val=4, size=64)
    make_tree(root / "ade", "ade", train=2, val=1, size=64)
    return root


def labelled(trees: Path) -> dict[str, Any]:
    """Options of a config for images of several labels."""
    data = dict(type="ImageTree", data_root=str(trees / "labels"), split="val", multi_label=True)
    data["pipeline"] = [dict(type="TimmEvalCrop", img_size=64, crop_pct=1.0), dict(type="PackInputs")]
    loader = dict(_delete_=True, batch_size=2, num_workers=0, sampler=dict(type="DefaultSampler", shuffle=False))
    loaders = {f"{split}_dataloader": loader | {"dataset": data} for split in ("train", "val", "test")}
    return {**loaders, "image_size": 64, "num_classes": 10}


# Class names.


def names_shown(way: str, path: str, outputs: int, folder: Path) -> list[str]:
    if way == "metadata":
        return json.loads(load_export_model("soft_pico", checkpoint=path).metadata()["classes"])
    given: dict[str, Any] = {"model": "soft_pico", "checkpoint": path}
    if way == "--config":
        given = {"config": DEMO, "checkpoint": path}
        given["options"] = {**NARROW_MODEL, "num_classes": outputs, "image_size": 64}
    elif way == "local-dir:":
        given = {"model": published(path, folder)[1]}
    (found,) = load_predictor(**given, topk=outputs)([PHOTO])
    return [name for _, name in sorted(zip(found.indices, found.names, strict=True))]


@pytest.mark.parametrize("outputs", [5, 1000])
@pytest.mark.parametrize("way", ["--model", "--config", "local-dir:", "metadata"])
def test_a_head_with_more_outputs_than_names_keeps_these_names(way, outputs, tmp_path):
    names = names_shown(way, checkpoint(tmp_path, outputs), outputs, tmp_path)
    assert tuple(names[:3]) == NAMES
    assert not {*names[3:]} & {*ImageNetInfo().label_descriptions()}


def test_outputs_without_names_are_told_once(tmp_path, recwarn, logged):
    path, x = checkpoint(tmp_path, 5), torch.randn(2, 3, 64, 64)
    predictor = load_predictor("soft_pico", None, path)
    told = [*predictor.notes, *(str(one.message) for one in recwarn), *logged]
    assert len([one for one in told if {"3", "5"} <= {*re.findall(r"\w+", one.replace(path, ""))}]) == 1
    found = timm.create_model("soft_pico", pretrained=True, pretrained_cfg_overlay={"file": path}, **NARROW)
    for model in (found.eval(), predictor.model):
        torch.testing.assert_close(model(x), network(outputs=5)(x))


@pytest.mark.parametrize("name", ["soft_pico.shapes", "soft_pico", "local-dir:"])
def test_classes_of_a_named_model_are_compared_by_name(name, trees, tmp_path):
    """The command of docs/data.md, on folders, which are sorted."""
    if name == "local-dir:":
        name = published(RESOURCES / "checkpoints" / "soft_pico.shapes.safetensors", tmp_path)[1]
    config = CONFIGS / "finetune" / "soft_tiny_imagefolder.py"
    options = {"test_dataloader.dataset.split": "test", "test_dataloader.num_workers": 0}
    for folder in ("shapes", "others"):
        given = dict(options=options | {"data_root": str(trees / folder)}, work_dir=tmp_path)
        if folder == "shapes":
            assert evaluate(config, name, **given)["accuracy/top1"] > 90
        else:
            with pytest.raises(ValueError, match="blue sky"):
                evaluate(config, name, **given)


# Several labels.


def test_a_published_classifier_of_several_labels_is_tested_as_its_checkpoint(trees, tmp_path):
    path, how = checkpoint(tmp_path, 10, True, CLASSES[::-1]), dict(work_dir=tmp_path)
    found = evaluate(LABELS, "soft_pico", weights=published(path, tmp_path)[0], options=labelled(trees), **how)
    right = evaluate(LABELS, path, options=labelled(trees) | NARROW_MODEL, **how)
    assert found["multi-label/mAP"] == pytest.approx(right["multi-label/mAP"], abs=1e-4)


def test_an_exported_model_says_how_its_outputs_are_read(tmp_path):
    one, other = (load_export_model("soft_pico", None, checkpoint(tmp_path, several=s)) for s in (False, True))
    assert one.metadata() != other.metadata()


@pytest.mark.parametrize("name", ["soft_tiny", "finetune/soft_tiny_pets", "demo/soft_pico_shapes"])
def test_any_config_learns_several_labels_or_refuses(name, trees, tmp_path):
    options = {**labelled(trees), **NARROW_MODEL, "model.model_name": "soft_pico", "model.multi_label": True}
    options |= {"load_from": None, "train_cfg.max_epochs": 1, "train_cfg.val_interval": 1, "default_hooks.watch": None}
    options["default_hooks.logger.interval"] = 1
    try:
        found = train(CONFIGS / f"{name}.py", options=options, work_dir=tmp_path)
    except ValueError as refusal:
        if "label" not in str(refusal):
            raise
        return
    assert "multi-label/mAP" in found.metrics
    assert not [metric for metric in found.metrics if "accuracy" in metric]
    # Binary cross entropies begin at log(2), softmax over ten classes at log(10).
    assert scalars(tmp_path)[0]["loss"] < 1


# Sizes: maps of 8 x 32 tokens have as many as those of 32 x 8.

VIT = dict(embed_dim=24, depth=2, num_heads=3, patch_size=4)
SIZES = [("pyramid", "checkpoint_path"), ("bare pyramid", "checkpoint_path"), ("bare pyramid", "overlay")]
SIZES += [("pyramid", "folder"), ("swapped", "folder"), ("swapped", "checkpoint_path")]


@pytest.mark.parametrize(("kind", "way"), SIZES)
def test_weights_of_another_size_are_resampled_or_refused(kind, way, tmp_path):
    name, options = ("vit_tiny_patch16_224", VIT) if kind == "swapped" else ("soft_pico", NARROW)
    model, x = network(name, size=(32, 128), **options), torch.randn(2, 3, 128, 32)
    if kind == "swapped":
        soft_vit.swap_attention(model, "polaformer")
        name, options = "swapped_by_soft_vit", dict(VIT, attn_layer={"kind": "polaformer"})
    file = tmp_path / ("a.safetensors" if "bare" in kind else "a.pth")
    weights = {key: value.contiguous() for key, value in model.state_dict().items()}
    save_file(weights, file) if "bare" in kind else torch.save(model.state_dict(), file)
    timm.models.save_for_hf(model, tmp_path / "hub", safe_serialization=True)
    given = {"checkpoint_path": {"checkpoint_path": str(file)}, "folder": {"pretrained": True}}
    given["overlay"] = {"pretrained": True, "pretrained_cfg_overlay": {"file": str(file)}}
    name, options = (f"local-dir:{tmp_path / 'hub'}", {}) if way == "folder" else (name, dict(options, num_classes=3))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = timm.create_model(name, img_size=(128, 32), **given[way], **options).eval()
        except ValueError as refusal:
            if "img_size" not in str(refusal):
                raise
            return
    if "bare" not in kind or not any("img_size" in str(one.message) for one in told):
        model.set_input_size((128, 32))
        torch.testing.assert_close(found(x), model(x), rtol=1e-5, atol=1e-5)


# Preprocessing.


def detector(path: str, **options: Any) -> Any:
    return MODELS.build(dense("detection/retinanet_soft_norm_tiny_fpn_1x_coco", path, **options).model).eval()


def dense(name: str, path: str, **options: Any) -> Any:
    backbone = {"model_name": "soft_pico", "checkpoint_path": path, **NARROW}
    options |= {f"model.backbone.{key}": value for key, value in backbone.items()}
    return resolve(CONFIGS / f"{name}.py", options)


def test_dense_models_normalise_as_the_weights_of_their_backbone(tmp_path):
    path = checkpoint(tmp_path, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    prepared = dense("segmentation/fpn_soft_norm_tiny_512_ade20k", path).data_preprocessor
    transform = detector(path).detector.transform
    noted = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert np.array([*prepared["mean"], *prepared["std"]]) == pytest.approx(255 * noted)
    assert [*transform.image_mean, *transform.image_std] == pytest.approx(noted)
    # As a checkpoint records it.
    assert normalisation_of(detector(path, **{"model.image_mean": [0.0] * 3}))["mean"] == (0, 0, 0)


def test_a_prediction_and_a_test_show_images_of_one_size(trees, tmp_path):
    data = dict(_delete_=True, type="ImageTree", data_root=str(trees / "others"), split="test")
    data["pipeline"] = [dict(type="PackInputs")]
    options = {"test_dataloader.dataset": data, "num_classes": 3}
    out = tmp_path / "out.json"
    evaluate(DEMO, "test_mambaout", pretrained=False, options=options, work_dir=tmp_path, out=out)
    shown = load_predictor("test_mambaout", pretrained=False).transform(PHOTO)
    assert shown.shape[-1] == json.loads(out.read_text())["img_size"]


def test_images_of_other_numbers_are_converted_by_their_range_or_refused():
    grey = np.asarray(PHOTO.convert("L"))
    pictures = [(Image.fromarray(wide), 0) for wide in (grey.astype(np.uint16) * 257, grey.astype(np.float32) / 255)]
    source = NamedImages(type("Source", (list,), {"targets": (0, 0)})(pictures))
    np.testing.assert_array_equal(np.asarray(source.image(0))[..., 0], grey)
    with pytest.raises(ValueError, match="range"):
        source.image(1)


# The weights that a model begins with.


def test_the_log_names_the_weights_of_a_backbone(trees, tmp_path):
    backbone = {"pretrained": False, "checkpoint_path": checkpoint(tmp_path), **NARROW}
    options = {"data_root": str(trees / "ade"), "train_cfg.max_iters": 1, "model.decoder.channels": 8}
    options |= {f"model.backbone.{name}": value for name, value in backbone.items()}
    options |= {"data_preprocessor.windows": None, "train_dataloader.dataset.pipeline": [{"type": "PackSegmentation"}]}
    config = CONFIGS / "segmentation" / "upernet_soft_pico_shapes.py"
    train(config, options=options, work_dir=tmp_path / "run", validate=False)
    (log,) = (tmp_path / "run").glob("*/*.log")
    (line,) = [line for line in log.read_text().splitlines() if "INFO - Model: " in line]
    assert "a.pth" in line
