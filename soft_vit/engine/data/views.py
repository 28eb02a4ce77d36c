"""Fit the test images of a config: folder, size, crop, normalisation, test time augmentation."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config
from timm.data import DEFAULT_CROP_PCT, resolve_data_config
from timm.layers import to_2tuple

from soft_vit.data.images import find_images
from soft_vit.engine.entries import datasets_in, type_name


@dataclass(frozen=True)
class View:
    """Preprocessing of a test image in timm's terms; see `TimmEvalCrop`. mean, std: of RGB values in [0, 1]."""

    img_size: int | tuple[int, int]
    crop_pct: float = DEFAULT_CROP_PCT
    interpolation: str = "bicubic"
    crop_mode: str = "center"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def data_config(
    pretrained_cfg: Mapping[str, Any], img_size: int | tuple[int, int] | None = None, crop_pct: float | None = None
) -> dict[str, Any]:
    """Return timm's preprocessing of test images, as its reported accuracies have it, with another size or crop."""
    asked = {"input_size": img_size and (3, *to_2tuple(img_size)), "crop_pct": crop_pct}
    return resolve_data_config(asked, dict(pretrained_cfg), use_test_size=True)


def timm_view(pretrained_cfg: Mapping[str, Any], *changes: Any) -> View:
    """Return `data_config` as a view."""
    view = data_config(pretrained_cfg, *changes)
    height, width = view.pop("input_size")[1:]
    return View(height if height == width else (height, width), **view)


def shown_datasets(cfg: Config) -> list[dict[str, Any]]:
    """Return the test data sets of a config that have a pipeline, also inside wrappers such as ConcatDataset."""
    return [one for one in datasets_in(cfg.test_dataloader.dataset) if not {"dataset", "datasets"} & one.keys()]


def crop_of(cfg: Config) -> dict[str, Any]:
    """Return the arguments of `TimmEvalCrop` in a config's (first) test pipeline; {} without one."""
    crops = (one for one in shown_datasets(cfg)[0].get("pipeline", []) if type_name(one) == "TimmEvalCrop")
    return {key: value for key, value in next(crops, {}).items() if key != "type"}


def view_of_config(cfg: Config, img_size: int | tuple[int, int] | None = None, crop_pct: float | None = None) -> View:
    """Return the view of a config's (first) test pipeline, with another size or crop if given."""
    arguments, drawn = crop_of(cfg), shown_datasets(cfg)[0].get("size")
    if isinstance(drawn, int):
        # Images drawn at that size are not cropped.
        arguments = {"img_size": drawn, "crop_pct": 1.0, **arguments}
    changes = (("img_size", img_size), ("crop_pct", crop_pct))
    arguments |= {name: value for name, value in changes if value is not None}
    if "img_size" not in arguments:
        raise ValueError("img_size must be given for a config without TimmEvalCrop in its test pipeline.")
    return View(**arguments)


def set_view(cfg: Config, view: View) -> None:
    """Replace the view of the test images of a config, in place; transforms that load, pack or repeat images stay."""
    crop = {key: getattr(view, key) for key in ("img_size", "crop_pct", "interpolation", "crop_mode")}
    for dataset in shown_datasets(cfg):
        pipeline = dataset.get("pipeline", [])
        loading = [transform for transform in pipeline if type_name(transform).startswith("Load")]
        packing = [transform for transform in pipeline if type_name(transform).startswith(("Pack", "TestTimeAug"))]
        if "size" in dataset:
            dataset.size = max(to_2tuple(view.img_size))
        dataset.pipeline = [*loading, {"type": "TimmEvalCrop", **crop}, *(packing or [{"type": "PackInputs"}])]
    if view.mean is not None:
        scale = {name: [255 * value for value in getattr(view, name)] for name in ("mean", "std")}
        if not _preprocessors(cfg):
            cfg.data_preprocessor = {"type": "RecipeDataPreprocessor"}
        for preprocessor in _preprocessors(cfg):
            preprocessor.update(scale)


def _preprocessors(cfg: Config) -> list[dict[str, Any]]:
    places = (cfg.get("data_preprocessor"), cfg.model.get("data_preprocessor"))
    return [preprocessor for preprocessor in places if preprocessor is not None]


def set_scale(cfg: Config, scale: float) -> None:
    """Make the segmentor of a config see test images at a share of their own resolution, in place.

    The share replaces the size of `SegResize`, and multiplies the scales of `test_cfg`. Raises ValueError for another
    model, and for a share that is not positive.
    """
    if type_name(cfg.model) != "TimmSegmentor" or not scale > 0:
        raise ValueError(f"scale must be above 0 and for a TimmSegmentor, got {scale} for {type_name(cfg.model)}.")
    options = dict(cfg.model.get("test_cfg") or {})
    options["scales"] = [scale * one for one in options.get("scales", (1.0,))]
    cfg.model.test_cfg = options
    for dataset in shown_datasets(cfg):
        dataset.pipeline = [step for step in dataset.pipeline if type_name(step) != "SegResize"]


def set_folder(cfg: Config, folder: str | Path, classes: Sequence[str]) -> list[int]:
    """Set the test data of a config, in place, to a folder with a folder of images for each class.

    classes: names of the model's classes in the order of its output; the folders are named like these or by their
    numbers. Returns the indices of the classes found. Raises FileNotFoundError for a missing folder, ValueError for
    a folder that is not a class.
    """
    images = find_images(folder, "", classes=classes)
    shown = shown_datasets(cfg)[0]
    steps = [step for step in shown.get("pipeline", []) if not type_name(step).startswith("Load")]
    where = {"data_root": str(folder), "split": "", "classes": list(classes), "bits": shown.get("bits")}
    cfg.test_dataloader.dataset = {"type": "ImageTree", "test_mode": True, "pipeline": steps, **where}
    for preprocessor in _preprocessors(cfg):
        if preprocessor.get("to_rgb"):
            # ImageTree's images are RGB.
            preprocessor.to_rgb = False
    return sorted({label for _, label in images.samples})


def use_tta_pipeline(cfg: Config, classifies: bool) -> None:
    """Make `tta_pipeline` the test pipeline of a config, in place.

    A classifier without one sees each image and its mirror image at the end of its own test pipeline, at the size and
    crop of the test. Raises ValueError for any other config without `tta_model` or `tta_pipeline`.
    """
    if not classifies and not (cfg.get("tta_model") and cfg.get("tta_pipeline")):
        raise ValueError(f"The config {cfg.filename} must set tta_model and tta_pipeline for --tta.")
    flips = [{"type": "RandomFlip", "prob": prob} for prob in (0.0, 1.0)]
    for dataset in shown_datasets(cfg):
        *loading, packing = dataset.pipeline
        views = {"type": "TestTimeAug", "transforms": [flips, [packing]]}
        dataset.pipeline = copy.deepcopy(cfg.get("tta_pipeline") or [*loading, views])


def use_tta_model(cfg: Config) -> None:
    """Wrap the model of a config, in place, in its `tta_model`, which by default averages scores."""
    if cfg.get("data_preprocessor"):
        # MMEngine gives the config's data_preprocessor to the outer model only.
        cfg.model.setdefault("data_preprocessor", cfg.pop("data_preprocessor"))
    cfg.model = {**(cfg.get("tta_model") or {"type": "mmpretrain.AverageClsScoreTTA"}), "module": cfg.model}
