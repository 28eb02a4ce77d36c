"""What it takes to build a model again and to read its outputs: one record, on models and in all files of weights."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from timm.data import ImageNetInfo, infer_imagenet_subset
from timm.models import PretrainedCfg, get_model_args
from timm.models._input import get_model_input_config

NOTES_KEY = "timm_model"
"""Key of the record in the `meta` of a checkpoint."""
MULTI_LABEL = "several labels for each image"
"""The entry of `notes` in timm's configuration of a model whose scores are sigmoids."""
# Arguments of timm's create_model that do not describe the model.
NOT_RECORDED = ("feature_cls", "features_only", "out_indices", "pretrained_strict")
# Options of a detector that its weights do not show: sizes of images and of anchors.
OF_DETECTORS = ("min_size", "max_size", "sizes")
# Of noted sizes, to which position embeddings are resampled.
MAX_SIDE = 1 << 14


def _are_numbers(values: Any, above: float) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(x, int | float) and above < x < math.inf for x in values)


def _are_sides(values: Any) -> bool:
    return _are_numbers(values, 0) and all(type(x) is int and x <= MAX_SIDE for x in values)


def _are_texts(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(text, str) for text in values)


# Entries of timm's configuration that a record holds, and which values timm can use.
USABLE: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("input_size", "test_input_size"), lambda x: _are_sides(x) and len(x) == 3),
    "mean": lambda x: _are_numbers(x, -math.inf),
    "std": lambda x: _are_numbers(x, 0),
    **dict.fromkeys(("crop_pct", "test_crop_pct"), lambda x: _are_numbers([x], 0.01)),
    "crop_mode": lambda x: x in ("center", "squash", "border"),
    "interpolation": lambda x: x in ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"),
    **dict.fromkeys(("label_names", "notes"), _are_texts),
}


@dataclass(frozen=True)
class ModelSpec:
    """How a model is built again, and how its outputs are read.

    model: its timm name. options: arguments of `timm.create_model`, those that were given and the current number of
    classes, channels and pooling; a swap is `architecture` and `attn_layer` of the model `swapped_by_soft_vit`. Those
    of a detector are `OF_DETECTORS`, and its `backbone` has its own. cfg: entries of timm's pretrained configuration
    (see `USABLE`): preprocessing, with mean and std of RGB values in [0, 1], names of the classes, and the note
    `MULTI_LABEL`. training: facts for a model card.
    """

    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    cfg: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any) -> "ModelSpec":
        """Return the record of a timm model, from what timm keeps on it.

        Warns about an option that is not plain, such as a class: files cannot hold it.
        """
        cfg = getattr(model, "pretrained_cfg", None) or {}
        options = options_of(model)
        if lost := get_model_args(model).keys() - options.keys() - set(NOT_RECORDED):
            names = ", ".join(sorted(lost))
            warnings.warn(f"The options {names} cannot be saved; give them again on loading.", stacklevel=2)
        known = {**cfg, "input_size": get_model_input_config(model)["input_size"]}
        if options.get("num_classes") != cfg.get("num_classes"):
            # The head was replaced.
            known |= {"label_names": None, "notes": None}
        return cls(cfg.get("architecture"), options, usable(known))

    @classmethod
    def of_cfg(cls, cfg: PretrainedCfg, options: Mapping[str, Any]) -> "ModelSpec":
        """Return the record of weights that timm's configuration describes. options: arguments of the model."""
        return cls(cfg.architecture, options, usable(cfg.to_dict()))

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "ModelSpec":
        """Return the record in plain values, without those that are not plain, or that timm cannot use."""
        model, training = record.get("model"), as_mapping(record.get("training"))
        cfg = usable(as_mapping(record.get("cfg")))
        if training.get("labels of an image") == "several":
            # Files of 0.4.
            cfg["notes"] = (MULTI_LABEL,)
        return cls(
            model if isinstance(model, str) else None,
            {key: value for key, value in as_mapping(record.get("options")).items() if is_plain_value(value)},
            cfg,
            {key: value for key, value in training.items() if isinstance(value, str)},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values, for `meta[NOTES_KEY]` or JSON."""
        return {key: value for key, value in asdict(self).items() if value}

    @property
    def img_size(self) -> tuple[int, int] | None:
        """Height and width of the images that the weights belong to, or None if they are not noted."""
        size = self.options.get("img_size")
        sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
        return (sides[0], sides[1]) if len(sides) == 2 and _are_sides(sides) else None

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of the outputs; () if unknown."""
        return tuple(self.cfg.get("label_names") or ())

    @property
    def multi_label(self) -> bool:
        """Whether an image has any number of the classes, so that scores are sigmoids of the logits."""
        return MULTI_LABEL in (self.cfg.get("notes") or ())

    def arguments(self, caller: Mapping[str, Any], variant: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the arguments to build the model with: those of its name, then of its file, then the caller's.

        A file's rates of dropout are those of its training, and do not count.
        """
        is_rate = lambda name: "drop" in name and name.endswith("rate")  # noqa: E731  short
        recorded = {name: value for name, value in self.options.items() if not is_rate(name)}
        return {**(variant or {}), **recorded, **caller}

    def entries(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of timm's configuration of the model that is built with these arguments.

        The names of the classes are left out of a model with another number of classes than the weights.
        """
        count = self.options.get("num_classes")
        keeps_head = arguments.get("num_classes") in (None, count)
        kept = {key: value for key, value in self.cfg.items() if keeps_head or key not in ("label_names", "notes")}
        if self.img_size is not None:
            kept["input_size"] = (self.options.get("in_chans", 3), *self.img_size)
        # Those of published tests are of other weights.
        kept = {f"test_{key}": None for key in ("input_size", "crop_pct") if key in kept} | kept
        return kept if count is None else {**kept, "num_classes": count}

    def with_classes(self, names: Sequence[str], multi_label: bool) -> "ModelSpec":
        """Return the record with other class names and another task."""
        cfg = {key: value for key, value in self.cfg.items() if key not in ("label_names", "notes")}
        cfg |= {"label_names": tuple(map(str, names))} if names else {}
        return replace(self, cfg=cfg | ({"notes": (MULTI_LABEL,)} if multi_label else {}))

    def class_names(self, num_classes: int) -> list[str]:
        """Return names of the first outputs: the known ones, or ImageNet's if none are known and their number is its.

        Warns if there are more outputs than known names.
        """
        if not (names := list(self.label_names)):
            subset = infer_imagenet_subset({"num_classes": num_classes})
            names = ImageNetInfo(subset).label_names() if subset else []
        elif len(names) != num_classes:
            warnings.warn(f"The model has {num_classes} outputs, and the names of {len(names)} classes.", stacklevel=2)
        return names[:num_classes]


def options_of(model: Any) -> dict[str, Any]:
    """Return the arguments of a timm model that are plain, see `ModelSpec`."""
    options = get_model_args(model).items()
    return {name: plain(value) for name, value in options if name not in NOT_RECORDED and is_plain_value(value)}


def usable(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of timm's configuration that a record holds, lists as tuples."""
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, is_usable in USABLE.items()
        if is_usable(value := cfg.get(key))
    }


def is_plain_value(value: Any) -> bool:
    """Return whether a value is a number, a text, True, False, None, or a list or dict of these."""
    if isinstance(value, list | tuple):
        return all(map(is_plain_value, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain_value(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def plain(value: Any) -> Any:
    """Return a copy of a plain value without subclasses, such as MMEngine's, which a safe reader refuses."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(map(plain, value))
    return next((kind(value) for kind in (bool, int, float, str) if isinstance(value, kind)), None)


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping, and {} for any other value."""
    return value if isinstance(value, Mapping) else {}
