"""Values at the top of a config that several entries share.

| value | sets |
|---|---|
| `ann_dir`, `ann_file` | data sets in which it is None |
| `data_root` | data sets without a folder of their own |
| `image_size` | the model, generated data sets, transforms that crop or resize, and windows of a sliding test |
| `num_classes` | the model and the data preprocessor; None counts the classes of the training data |
| `val_fraction` | the share of each class in `train/` that is held out, instead of `val/`; for every `ImageTree` |
| | the share of all images that is held out; for data sets that set `held_out` |

An entry that the file does not set takes the shared value. An option, and a value that a config sets over one of the
files that it is based on, also change entries with the earlier value.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import timm
from mmengine.config import Config
from timm.layers import to_2tuple

import soft_vit  # noqa: F401  registers its models with timm
from soft_vit.engine.entries import arguments_of, class_of, datasets_of, entries, timm_model, type_name
from soft_vit.engine.models.timm_model import published_spec
from soft_vit.registry import DATASETS
from soft_vit.weights.build import is_own_model

NAMES = ("ann_dir", "ann_file", "data_root", "image_size", "num_classes", "val_fraction")
"""The shared values."""
_PATHS = ("ann_dir", "ann_file", "data_root")
# The argument for the image size of each type that has one.
_SIZED = dict.fromkeys(("AlbumentationsTransform", "TimmAugment", "TimmEvalCrop"), "img_size")
_SIZED["ShapesDataset"] = "size"
# The same for types that take another size, or none, where a config does not set it.
_SIZED_IF_SET = {
    "SegmentationPreprocessor": "size",
    "SegRandomCrop": "crop_size",
    "SegRandomResize": "scale",
    "SegResize": "scale",
}


@dataclass(frozen=True)
class Earlier:
    """The values that the shared values of a config replace.

    values: of each shared name in the config's file and in the files that it is based on, the last one first.
    replaced: the names that an option sets, or a file to another value than the files that it is based on. options:
    the dotted names of all options.
    """

    values: Mapping[str, list[Any]]
    replaced: Set[str]
    options: Set[str]


def share(cfg: Config, earlier: Earlier) -> None:
    """Set the entries that take shared values, in place.

    Raises ValueError for a replaced value that no entry takes, and for values that contradict each other.
    """
    _share_paths(cfg, earlier)
    _hold_out(cfg)
    if not counts_classes(cfg, earlier):
        share_num_classes(cfg, earlier)
    _share_image_size(cfg, earlier)
    for name in sorted(earlier.replaced):
        # A file may set a name of its own for its own entries, which options may set to another value.
        own = len(earlier.values[name]) < 2 or any(cfg.get(name) in one.values() for at, one in entries(cfg) if at)
        own |= any(option.endswith(f".{name}") for option in earlier.options)
        if not _reaches(cfg, name) and (name in earlier.options or not own):
            raise ValueError(f"An entry must read {name}, got {cfg.get(name)!r}, which none takes.")


def _reaches(cfg: Config, name: str) -> bool:
    """Return whether an entry takes a shared value."""
    if name in ("val_fraction", *_PATHS):
        return any(dataset.get(name) == cfg[name] for dataset in datasets_of(cfg, "train", "val", "test"))
    if name == "image_size":
        return "img_size" in timm_model(cfg) or any(True for _ in _sized(cfg))
    return bool(timm_model(cfg)) or _sets_num_classes(cfg)


def _share_paths(cfg: Config, earlier: Earlier) -> None:
    for name in [name for name in _PATHS if cfg.get(name) is not None]:
        cfg[name] = value = str(cfg[name])
        for dataset in datasets_of(cfg, "train", "val", "test"):
            takes = takes_data_root(dataset) if name == "data_root" else name in dataset
            if takes and dataset.get(name) in (None, *earlier.values[name]):
                dataset[name] = value


def takes_data_root(dataset: Mapping[str, Any]) -> bool:
    """Return whether a data set has the argument `data_root`."""
    return "data_root" in dataset or "data_root" in arguments_of(class_of(dataset, DATASETS) or object)[0]


def _hold_out(cfg: Config) -> None:
    """Split the training images of each data set that can do so in two, where `val_fraction` asks for it."""
    share = cfg.get("val_fraction")
    for split in ("train", "val", "test") if share is not None else ():
        for dataset in datasets_of(cfg, split):
            if type_name(dataset) != "ImageTree":
                dataset.update({"val_fraction": share} if "held_out" in dataset else {})
            elif share and dataset.get("split", "train") in ("train", "val"):
                dataset.update(split="train", val_fraction=share, held_out=split != "train")


def counts_classes(cfg: Config, earlier: Earlier) -> bool:
    """Return whether the number of classes is to be counted in the data."""
    model = timm_model(cfg).get("num_classes")
    return cfg.get("num_classes", 0) is None and model in (None, *earlier.values["num_classes"])


def share_num_classes(cfg: Config, earlier: Earlier) -> None:
    """Set the number of classes of the model and of the data preprocessor."""
    old = earlier.values["num_classes"]
    value = _agree(cfg, "num_classes", "num_classes", earlier)
    model = timm_model(cfg)
    if _sets_num_classes(cfg) and "num_classes" in earlier.replaced and "model.num_classes" not in earlier.options:
        cfg.model.num_classes = value
    for entry in (model, cfg.get("data_preprocessor"), model.get("data_preprocessor")):
        if model and value is not None and entry is not None and entry.get("num_classes") in (None, *old):
            entry["num_classes"] = value


def _sets_num_classes(cfg: Config) -> bool:
    """Return whether the model is a detector or segmentor with `num_classes`, which a file may set there alone."""
    return not timm_model(cfg) and "num_classes" in (cfg.get("model") or {})


def _sized(cfg: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the dotted name, the entry and the argument of each size of an image."""
    for name, entry in entries(cfg, place):
        kind = type_name(entry)
        argument = _SIZED.get(kind) or _SIZED_IF_SET.get(kind)
        if argument and (kind in _SIZED or entry.get(argument) is not None):
            yield name, entry, argument
        if kind == "TimmSegmentor" and "crop_size" in (entry.get("test_cfg") or {}):
            yield f"{name}.test_cfg", entry["test_cfg"], "crop_size"


def _share_image_size(cfg: Config, earlier: Earlier) -> None:
    if (value := _agree(cfg, "image_size", "img_size", earlier)) is None:
        return
    if not all(isinstance(side, int) and side > 0 for side in to_2tuple(value)):
        raise ValueError(f"image_size must be a positive int or (height, width), got {value}.")
    model = timm_model(cfg)
    if model and _takes_img_size(model["model_name"]):
        model["img_size"] = value
    for _, entry, argument in _sized(cfg):
        if entry.get(argument) in (None, *earlier.values["image_size"]):
            entry[argument] = value
    for split in ("train", "val") if model else ():
        for place, entry, argument in _sized(cfg.get(f"{split}_dataloader"), f"{split}_dataloader"):
            if tuple(to_2tuple(entry[argument])) != tuple(to_2tuple(value)):
                raise ValueError(f"{place}.{argument} must be image_size={value}, got {entry[argument]}.")


def _agree(cfg: Config, name: str, argument: str, earlier: Earlier) -> Any:
    """Return a shared value, or the model's if only the model has one. Raises ValueError if they differ."""
    value, of_model = cfg.get(name), timm_model(cfg).get(argument)
    options = earlier.options
    if of_model is not None and (value is None or (f"model.{argument}" in options and name not in options)):
        value = of_model
        if name in cfg:
            cfg[name] = of_model
    elif of_model not in (None, *earlier.values[name], value):
        raise ValueError(f"model.{argument} must equal {name}={value}, got {of_model}; set only {name}.")
    return value


def _takes_img_size(name: str) -> bool:
    if is_own_model(name) or ":" in name:
        return ":" not in name or "img_size" in published_spec(name).options
    return timm.is_model(name) and getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False)
