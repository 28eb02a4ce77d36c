"""What a file of weights says of the images that they were trained on."""

import ast
import math
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import timm
from mmengine.config import Config

from soft_vit.engine.data.eval_data import view_of_config
from soft_vit.engine.errors import UserError
from soft_vit.layers import ATTENTIONS, attention_options
from soft_vit.models.pretrained import ENTRIES
from soft_vit.models.pyramid import PyramidViT
from soft_vit.weights.files import sha256_of

__all__ = ["cfg_of_config", "config_of_cfg", "config_values", "image_size", "mapping", "model_options", "trained_cfg"]

DATA_KEYS = ("input_size", "mean", "std", "crop_pct", "crop_mode", "interpolation", "label_names")

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")
CROP_MODES = ("center", "squash", "border")


def trained_cfg(content: Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    """Those of DATA_KEYS that a file says, as timm's configurations have them; nothing in it is executed.

    content: what was read from the file. A recorded file, known by its digest, says what its entry of the index does;
    any other what the config and the names of classes in it say. mean, std: of RGB values in [0, 1].
    """
    recorded = _recorded_cfg(Path(path).expanduser())
    if recorded is not None:
        return recorded
    meta = mapping(content, "meta")
    found = cfg_of_config(config_values(meta.get("cfg")))
    classes = mapping(meta, "dataset_meta").get("classes")
    if isinstance(classes, list | tuple) and classes:
        found["label_names"] = tuple(str(name) for name in classes)
    return found


def cfg_of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the entries of a training config say of DATA_KEYS. Values that cannot be right are passed over."""
    found = _view(config)
    prepared = mapping(mapping(config, "model"), "data_preprocessor") or mapping(config, "data_preprocessor")
    mean, std = prepared.get("mean"), prepared.get("std")
    if _are_numbers(mean) and _are_numbers(std) and len(mean) == len(std) and min(std) > 0:
        found |= {"mean": tuple(value / 255 for value in mean), "std": tuple(value / 255 for value in std)}
    size = image_size(config) or found.pop("size", None)
    found.pop("size", None)
    if size is not None:
        found["input_size"] = (3, *size)
    return found


def config_of_cfg(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a training config that say of images what `cfg_of_config` reads from them."""
    config: dict[str, Any] = {}
    if "input_size" in cfg:
        side = min(cfg["input_size"][1:])
        view = {key: cfg[key] for key in ("crop_pct", "crop_mode", "interpolation") if key in cfg}
        config["model"] = {"img_size": list(cfg["input_size"][1:])}
        pipeline = [{"type": "TimmEvalCrop", "img_size": side, **view}]
        config["test_dataloader"] = {"dataset": {"pipeline": pipeline}}
    if "mean" in cfg:
        config["data_preprocessor"] = {key: [255 * value for value in cfg[key]] for key in ("mean", "std")}
    return config


def image_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Height and width that the model of a training config is made for, None where it does not say."""
    size = mapping(config, "model").get("img_size")
    size = [size] * 2 if isinstance(size, int) else size
    sides = isinstance(size, list | tuple) and len(size) == 2 and all(type(side) is int and side > 0 for side in size)
    return tuple(size) if sides else None


def model_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The pyramid's own options, such as the inverse, that a training config sets for its model."""
    own = set(signature(PyramidViT.__init__).parameters) - {"self", "device", "dtype", "attn_options"}
    for cls in ATTENTIONS.values():
        own |= attention_options(cls).keys()
    return {key: value for key, value in mapping(config, "model").items() if key in own}


def mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping under a key, an empty one where there is none."""
    value = values.get(key)
    return value if isinstance(value, Mapping) else {}


def config_values(text: Any) -> dict[str, Any]:
    """The entries of a config that MMEngine wrote into a checkpoint, read as values and never run.

    Entries that are not made of numbers, texts, lists and `dict(...)` alone are left out; so is all of a text that is
    no Python.
    """
    try:
        statements = ast.parse(text).body if isinstance(text, str) else []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    values = {}
    for statement in statements:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            try:
                values[statement.targets[0].id] = _value(statement.value)
            except (ValueError, TypeError, RecursionError):
                continue
    return values


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or node.func.id != "dict" or node.args:
            raise ValueError(f"{ast.unparse(node.func)} is called")
        return {keyword.arg: _value(keyword.value) for keyword in node.keywords if keyword.arg}
    if isinstance(node, ast.Dict):
        return {_value(key): _value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    return ast.literal_eval(node)


def _recorded_cfg(path: Path) -> dict[str, Any] | None:
    """What is recorded of a file with this digest; None where there is no such file in the index."""
    size = path.stat().st_size
    alike = [entry for entry in ENTRIES.values() if entry.sha256 and entry.size in (None, size)]
    digest = sha256_of(path) if alike else None
    name = next((entry.name for entry in alike if entry.sha256 == digest), None)
    if name is None:
        return None
    # timm's configuration adds what the entry leaves at the defaults of its family.
    cfg = timm.get_pretrained_cfg(name).to_dict()
    return {key: cfg[key] for key in DATA_KEYS if cfg.get(key) is not None}


def _view(config: Mapping[str, Any]) -> dict[str, Any]:
    """How the test images of a config are cropped and resized, and their `size`; nothing where it does not say."""
    try:
        view = view_of_config(Config(dict(config)), None, None)
    except (UserError, AttributeError, TypeError, ZeroDivisionError):
        return {}
    right = view.interpolation in INTERPOLATIONS and view.crop_mode in CROP_MODES
    if not (right and _are_numbers([view.crop_pct]) and view.crop_pct > 0):
        return {}
    found = {"crop_pct": view.crop_pct, "interpolation": view.interpolation, "crop_mode": view.crop_mode}
    size = image_size({"model": {"img_size": view.img_size}})
    return found if size is None else {**found, "size": size}


def _are_numbers(values: Any) -> bool:
    return (
        isinstance(values, list | tuple)
        and len(values) > 0
        and all(type(value) in (int, float) and math.isfinite(value) for value in values)
    )
