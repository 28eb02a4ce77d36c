"""Values that stand once in a config and reach every entry that needs them.

| value at the top of a config | reaches |
|---|---|
| `data_root` | data sets without a folder of their own |
| `image_size` | the model, generated data sets, and transforms that crop or resize |
| `num_classes` | the model and the data preprocessor |
| `train_cfg.max_epochs`, `max_iters` | cosine and polynomial schedules without an `end` |

An entry that sets another value keeps it.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import timm
from mmengine.config import Config

import soft_vit  # noqa: F401  registers its models with timm
from soft_vit.data.images import find_images
from soft_vit.models import FAMILY_MODELS, PYRAMID_MODELS

__all__ = [
    "count_classes",
    "entries",
    "fill_data_root",
    "fill_values",
    "reaches",
    "require_one_size",
    "set_num_classes",
    "take_trained_classes",
    "type_name",
]

# The argument that holds the image size, of each type that has one.
_SIZED = {
    "AlbumentationsTransform": "img_size",
    "ShapesDataset": "size",
    "TimmAugment": "img_size",
    "TimmEvalCrop": "img_size",
}


def type_name(entry: Mapping[str, Any]) -> str:
    """The class that an entry names, without the scope of a registry or the path of a module before it."""
    return str(entry.get("type", "")).rpartition(".")[2]


def entries(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every mapping in a config, with its dotted name."""
    if isinstance(value, Mapping | Config):
        yield place, value
        inside = list(value.items())
    elif isinstance(value, list | tuple):
        inside = list(enumerate(value))
    else:
        return
    for key, inner in inside:
        yield from entries(inner, f"{place}.{key}" if place else str(key))


def fill_values(cfg: Config, before: Mapping[str, Any], given: Collection[str] = ()) -> None:
    """Fill in all values of the table above, in place.

    before: the values before the command line changed some; what equals one of these was made from it, and follows it.
    given: names that the command line sets. Raises ValueError when one of these contradicts the model.
    """
    fill_data_root(cfg)
    size, old = _shared(cfg, before, "image_size", "img_size", given)
    if size is not None:
        for _, entry in entries(cfg):
            argument = _SIZED.get(type_name(entry))
            if argument and entry.get(argument) in (None, old):
                entry[argument] = size
    num_classes, old = _shared(cfg, before, "num_classes", "num_classes", given)
    if num_classes is not None:
        set_num_classes(cfg, num_classes, old)
    _end_schedules(cfg)


def reaches(cfg: Config, name: str) -> bool:
    """Whether a config has an entry that receives the value of `image_size`, `num_classes` or `data_root`."""
    if name == "data_root":
        loaders = (cfg.get(f"{split}_dataloader") or {} for split in ("train", "val", "test"))
        found = (dataset.get("data_root") for loader in loaders for dataset in _datasets(loader.get("dataset")))
        return cfg.get(name) in found
    if name == "image_size" and any(type_name(entry) in _SIZED for _, entry in entries(cfg)):
        return True
    return name in ("image_size", "num_classes") and "model_name" in (cfg.get("model") or {})


def fill_data_root(cfg: Config) -> None:
    """Give `data_root` to every ImageTree without one, and to every other data set with `data_root=None`."""
    root = cfg.get("data_root")
    if root is None:
        return
    for split in ("train", "val", "test"):
        for dataset in _datasets((cfg.get(f"{split}_dataloader") or {}).get("dataset")):
            open_root = type_name(dataset) == "ImageTree" or "data_root" in dataset
            if open_root and not dataset.get("data_root"):
                dataset["data_root"] = root


def _datasets(config: Any) -> Iterator[dict]:
    """The config of a data set, and those inside it."""
    if isinstance(config, dict):
        yield config
        for inner in (config.get("dataset"), *config.get("datasets", ())):
            yield from _datasets(inner)


def _shared(
    cfg: Config, before: Mapping[str, Any], name: str, argument: str, given: Collection[str]
) -> tuple[Any, Any]:
    """The value of `name` and the one before. An argument that the model sets itself overrules it, or receives it."""
    value, old = cfg.get(name), before.get(name)
    model = cfg.get("model") or {}
    if "model_name" not in model:
        return value, old
    own = model.get(argument)
    if own is None or (own == old and f"model.{argument}" not in given):
        if value is not None and (argument != "img_size" or _takes_img_size(model["model_name"])):
            model[argument] = value
        return value, old
    if value is not None and own != value and name in given:
        raise ValueError(f"{name} is {value} and model.{argument} is {own}; set {name} alone, which reaches the model.")
    if name in cfg:
        cfg[name] = own
    return own, old


def _takes_img_size(name: str) -> bool:
    if name.partition(".")[0] in {**PYRAMID_MODELS, **FAMILY_MODELS}:
        return True
    found = timm.get_pretrained_cfg(name, allow_unregistered=True) if timm.is_model(name) else None
    return bool(found and found.fixed_input_size)


def set_num_classes(cfg: Config, num_classes: int, old: int | None = None) -> None:
    """Give the timm model of a config and its data preprocessor a number of classes, unless they have one but `old`."""
    model = cfg.get("model") or {}
    if "model_name" not in model:
        return
    for entry in (model, cfg.get("data_preprocessor"), model.get("data_preprocessor")):
        if entry is not None and entry.get("num_classes") in (None, old):
            entry["num_classes"] = num_classes


def take_trained_classes(cfg: Config, names: Collection[str]) -> None:
    """Give a config that leaves `num_classes` open the number of a checkpoint's classes; names may be empty."""
    if names and "num_classes" in cfg and cfg.num_classes is None:
        cfg.num_classes = len(names)
        set_num_classes(cfg, len(names))


def count_classes(cfg: Config) -> None:
    """Count the classes of the training images where a config with a timm model does not say how many there are.

    Raises ValueError or FileNotFoundError for a folder that holds no images of classes.
    """
    dataset = (cfg.get("train_dataloader") or {}).get("dataset") or {}
    model = cfg.get("model") or {}
    if "num_classes" not in cfg or model.get("num_classes") or type_name(dataset) != "ImageTree":
        return
    if not dataset.get("data_root"):
        return
    names = dataset.get("classes")
    if not names:
        arguments = {"label_file": dataset["label_file"]} if dataset.get("label_file") else {}
        names = find_images(dataset["data_root"], dataset.get("split", "train"), **arguments).classes
    cfg.num_classes = len(names)
    set_num_classes(cfg, len(names))


def _end_schedules(cfg: Config) -> None:
    """Let open cosine and polynomial schedules last as long as the run, and leave out those that begin after it."""
    schedulers = cfg.get("param_scheduler")
    if not isinstance(schedulers, list):
        return
    run = cfg.get("train_cfg") or {}
    kept = []
    for scheduler in schedulers:
        length = run.get("max_epochs" if scheduler.get("by_epoch", True) else "max_iters")
        # A length that is no number is refused by the loop.
        open_end = isinstance(length, int) and not {"end", "T_max"} & scheduler.keys()
        if type_name(scheduler) in ("CosineAnnealingLR", "PolyLR") and open_end:
            if scheduler.get("begin", 0) >= length:
                continue
            scheduler["end"] = length
        kept.append(scheduler)
    if len(kept) < len(schedulers):
        cfg.param_scheduler = kept


def require_one_size(cfg: Config) -> None:
    """Refuse to train a timm model on images of another size than it is made for. Raises ValueError."""
    size = (cfg.get("model") or {}).get("img_size")
    if size is None:
        return
    for place, entry in entries(cfg.get("train_dataloader") or {}, "train_dataloader"):
        argument = _SIZED.get(type_name(entry))
        shown = entry.get(argument) if argument else None
        if shown is not None and _pair(shown) != _pair(size):
            raise ValueError(
                f"{place}.{argument} is {shown} and model.img_size is {size}; set image_size alone, which reaches both."
            )


def _pair(size: int | list | tuple) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size)
