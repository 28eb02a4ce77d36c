"""The images of a test: their folder, size, crop, normalisation and views."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope
from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_data_config

from soft_vit.data.images import find_images, read_lines
from soft_vit.engine.config import type_name

__all__ = [
    "View",
    "class_names",
    "set_folder",
    "set_view",
    "shown_datasets",
    "takes_pillow",
    "timm_view",
    "use_tta_model",
    "use_tta_pipeline",
    "view_of_config",
]

# timm's default, and that of ImageNet's usual evaluation: 224 of 256 pixels.
CROP_PCT = 0.875


@dataclass(frozen=True)
class View:
    """How an image reaches the model, in timm's terms; see `TimmEvalCrop`. mean, std: of RGB values in [0, 1]."""

    img_size: int
    crop_pct: float = CROP_PCT
    interpolation: str = "bicubic"
    crop_mode: str = "center"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def timm_view(pretrained_cfg: dict[str, Any], img_size: int | None = None, crop_pct: float | None = None) -> View:
    """The view that timm reports a model's accuracy for, with another size or crop if given."""
    found = resolve_data_config({"img_size": img_size, "crop_pct": crop_pct}, pretrained_cfg, use_test_size=True)
    height, width = found.pop("input_size")[1:]
    if height != width:
        raise ValueError(f"The model takes images of {height} x {width}, which are not square; set img_size.")
    return View(height, **found)


def shown_datasets(cfg: Config) -> list[dict[str, Any]]:
    """The test data set of a config, or those inside wrappers such as ConcatDataset."""

    def inside(dataset: dict[str, Any]) -> list[dict[str, Any]]:
        wrapped = dataset.get("datasets") or ([dataset["dataset"]] if "dataset" in dataset else [])
        return [one for inner in wrapped for one in inside(inner)] or [dataset]

    return inside(cfg.test_dataloader.dataset)


def takes_pillow(cfg: Config) -> bool:
    """Whether the test pipeline of a config takes the images of `ImageTree`: Pillow's, of any size."""
    dataset = shown_datasets(cfg)[0]
    loads = any(type_name(transform) == "LoadImageFromFile" for transform in dataset.get("pipeline", []))
    # Images drawn at a given size need no resizing.
    return not loads and "size" not in dataset


def view_of_config(cfg: Config, img_size: int | None, crop_pct: float | None) -> View:
    """The view of a config's test pipeline, the first of several, with another size or crop if given."""
    dataset = shown_datasets(cfg)[0]
    found: dict[str, Any] = {}
    for transform in dataset.get("pipeline", []):
        name = type_name(transform)
        if name == "TimmEvalCrop":
            found = {key: value for key, value in transform.items() if key != "type"}
        elif name == "ResizeEdge":
            found["scale"], found["interpolation"] = transform.scale, transform.get("interpolation", "bilinear")
        elif name == "CenterCrop" and isinstance(transform.crop_size, int):
            found["img_size"] = transform.crop_size
    scale = found.pop("scale", None)
    if scale and "img_size" in found:
        found["crop_pct"] = found["img_size"] / scale
    if isinstance(dataset.get("size"), int):
        # Images drawn at that size are not cropped.
        found = {"img_size": dataset.size, "crop_pct": 1.0, **found}
    changes = {"img_size": img_size, "crop_pct": crop_pct}
    found.update({name: value for name, value in changes.items() if value is not None})
    if "img_size" not in found:
        raise ValueError("img_size must be given with crop_pct where the config says no size of test images.")
    return View(**found)


def set_view(cfg: Config, view: View) -> None:
    """Give the test images of a config a view, in place.

    Transforms that load, pack or repeat an image stay. Raises ValueError if these set sizes themselves.
    """
    crop = {key: getattr(view, key) for key in ("img_size", "crop_pct", "interpolation", "crop_mode")}
    for dataset in shown_datasets(cfg):
        pipeline = dataset.get("pipeline", [])
        loading = [transform for transform in pipeline if type_name(transform).startswith("Load")]
        packing = [transform for transform in pipeline if type_name(transform).startswith(("Pack", "TestTimeAug"))]
        _require_one_size(packing)
        if "size" in dataset:
            dataset.size = view.img_size
        dataset.pipeline = [*loading, {"type": "TimmEvalCrop", **crop}, *(packing or [{"type": "PackInputs"}])]
    if view.mean is not None:
        scale = {name: [255 * value for value in getattr(view, name)] for name in ("mean", "std")}
        if not _preprocessors(cfg):
            cfg.data_preprocessor = {"type": "RecipeDataPreprocessor"}
        for preprocessor in _preprocessors(cfg):
            preprocessor.update(scale)


def _require_one_size(packing: list[dict[str, Any]]) -> None:
    for views in (views for transform in packing for views in transform.get("transforms", [])):
        sizing = [name for name in map(type_name, views) if "Resize" in name or "Crop" in name]
        if sizing:
            raise ValueError(f"tta_pipeline must not set sizes, which the test sets; got {sizing[0]} in TestTimeAug.")


def _preprocessors(cfg: Config) -> list[dict[str, Any]]:
    found = (cfg.get("data_preprocessor"), cfg.model.get("data_preprocessor"))
    return [preprocessor for preprocessor in found if preprocessor is not None]


def set_folder(cfg: Config, folder: str | Path, classes: Sequence[str]) -> list[int]:
    """Test on the images of a folder with a folder for each class; changes the config in place.

    classes: of the model, in the order of its output; the folders are named like these or by their numbers. Returns the
    indices of the classes found. Raises FileNotFoundError for a missing folder, ValueError for
    images that fit no class.
    """
    images = find_images(folder, "", classes=classes)
    pipeline = shown_datasets(cfg)[0].get("pipeline", [])
    cfg.test_dataloader.dataset = {
        "type": "ImageTree",
        "data_root": str(folder),
        "split": "",
        "classes": list(classes),
        "test_mode": True,
        "pipeline": [transform for transform in pipeline if not type_name(transform).startswith("Load")],
    }
    for preprocessor in _preprocessors(cfg):
        if preprocessor.get("to_rgb"):
            # ImageTree's images are RGB.
            preprocessor.to_rgb = False
    return sorted({label for _, label in images.samples})


def class_names(
    cfg: Config,
    num_classes: int,
    trained: Sequence[str] = (),
    listed: str | Path | None = None,
    recorded: Sequence[str] | None = None,
) -> list[str]:
    """Return the names of a model's classes in the order of its output.

    They come from the first of these sources: `listed`, a text file with one a line; `trained`, those in a
    checkpoint; timm's lists of ImageNet's classes, by their number; `recorded`, those of the recorded weights; the
    config's training split. Raises ValueError when none has them, or the number is not the model's.
    """
    subset = infer_imagenet_subset({"num_classes": num_classes})
    if listed is not None:
        path = Path(listed).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"There is no list of classes {path}; give a text file with one name a line.")
        names = read_lines(path)
    elif trained:
        names = [str(name) for name in trained]
    elif subset is not None:
        names = ImageNetInfo(subset).label_names()
    else:
        names = list(recorded or _training_classes(cfg))
    if len(names) != num_classes:
        raise ValueError(
            f"The classes must be the {num_classes} of the model, got {len(names)} names; give a file with one name a "
            "line, in the order of the model's output, as --classes."
        )
    return names


def _training_classes(cfg: Config) -> Sequence[str]:
    try:
        # Transforms are looked up by name in a scope that a runner would set.
        with DefaultScope.overwrite_default_scope(cfg.get("default_scope", "mmengine")):
            return DATASETS.build(cfg.train_dataloader.dataset).metainfo.get("classes") or ()
    except (OSError, ValueError, AttributeError):
        # The images of the training need not be here.
        return ()


def use_tta_pipeline(cfg: Config, classifies: bool) -> None:
    """Make `tta_pipeline` the test pipeline of a config, in place.

    A classifier without one sees each image and its mirror image at the end of its own test pipeline, which keeps the
    size and the crop that a run chooses. Raises ValueError for any other config without one.
    """
    absent = [name for name in ("tta_model", "tta_pipeline") if not cfg.get(name)]
    if absent and not classifies:
        raise ValueError(f"The config {cfg.filename} must set {' and '.join(absent)} for --tta.")
    for dataset in shown_datasets(cfg):
        own = dataset.get("pipeline")
        if not cfg.get("tta_pipeline") and not own:
            raise ValueError(f"The config {cfg.filename} must set tta_pipeline for --tta.")
        dataset.pipeline = copy.deepcopy(cfg.get("tta_pipeline") or [*own[:-1], _flips(own[-1])])


def _flips(packing: dict) -> dict:
    flips = [{"type": "RandomFlip", "prob": prob} for prob in (0.0, 1.0)]
    return {"type": "TestTimeAug", "transforms": [flips, [packing]]}


def use_tta_model(cfg: Config) -> None:
    """Wrap the model of a config, in place, in its `tta_model`; by default scores are averaged."""
    if cfg.get("data_preprocessor"):
        # MMEngine gives the config's data_preprocessor to the outer model only.
        cfg.model.setdefault("data_preprocessor", cfg.pop("data_preprocessor"))
    wrapper = cfg.get("tta_model") or {"type": "mmpretrain.AverageClsScoreTTA"}
    cfg.model = {**wrapper, "module": cfg.model}
