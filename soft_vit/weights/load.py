"""Build a model and load its weights: read once, unwrap once, rename and resample, load.

A family defines two methods for this on its model: `from_released` renames released weights, `resample_state`
resamples parameters that depend on the image size.
"""

import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import timm
from timm.models import PretrainedCfg, adapt_input_conv, build_model_with_cfg, resolve_pretrained_cfg
from torch import Tensor, nn

from soft_vit.weights.fetch import check_command, recorded_file
from soft_vit.weights.files import WeightsError
from soft_vit.weights.index import ENTRIES, Entry
from soft_vit.weights.read import NotedWeights, Notes, load_weights, require_finite, unwrap_state_dict

# Names of parameters in detectors and segmentors of this package, of mmdet and of mmseg.
DENSE_PARTS = ("detector.", "backbone.body.", "rpn_head.", "roi_head.", "bbox_head.", "decode_head.")
SOURCES = ("url", "file", "state_dict", "hf_hub_id")

_logger = logging.getLogger(__name__)


def checkpoint_filter_fn(state_dict: Mapping[str, Tensor], model: Any) -> dict[str, Tensor]:
    """Return released or converted weights under the names of a model of this package, resampled to its image size.

    Converted weights of that size pass unchanged. The head and the first convolution are adapted by `fit_weights`.
    """
    img_size = state_dict.notes.img_size() if isinstance(state_dict, NotedWeights) else None
    # timm sets these from the config.json of a model that it saved.
    img_size = img_size or getattr(model, "pretrained_model_args", {}).get("img_size")
    weights = model.from_released(state_dict)
    model.resample_state(weights, img_size=img_size)
    return weights


def build_model(
    model_cls: type[nn.Module],
    variant: str,
    pretrained: bool = False,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: dict[str, Any] | None = None,
    pretrained_strict: bool = True,
    cache_dir: str | Path | None = None,
    **kwargs: Any,
) -> nn.Module:
    """Build a model as timm's `build_model_with_cfg` does; recorded weights and files are loaded here.

    variant: a name that is registered with timm. pretrained_cfg: as in timm, a tag, a dict or a PretrainedCfg.
    pretrained_strict: refuse weights with missing or unexpected parameters. What a file notes, such as global_pool,
    mean, std and classes, becomes the model's unless the arguments override it. Raises WeightsError for recorded
    weights that are not available, FileNotFoundError for a missing file, and what `fit_weights` raises. Warns if the
    weights have a head for other classes than the model and num_classes was not given.
    """
    cfg = resolve_pretrained_cfg(variant, pretrained_cfg, pretrained_cfg_overlay)
    weights, source = None, variant
    entry = _recorded_entry(variant, cfg) if pretrained else None
    if entry is not None:
        weights, source = recorded_weights(entry, cache_dir), f"{variant}.{cfg.tag}"
        if entry.license is None:
            _logger.warning("The authors of %s state no licence for these weights; ask them for one.", source)
        kwargs = {**entry.options, **kwargs}
        # timm saves the configuration with the model, which must not show a path of this machine.
        cfg = replace(cfg, file=None)
    elif pretrained and cfg.state_dict:
        weights = unwrap_state_dict(cfg.state_dict, "state_dict")
        cfg = replace(cfg, state_dict=None)
    elif pretrained and cfg.file and not cfg.source:
        weights, source = load_weights(cfg.file), str(cfg.file)
    elif pretrained and not cfg.has_weights:
        raise WeightsError(
            f"No pretrained weights exist for {variant}; choose one of timm.list_pretrained(), or give a file "
            "(pretrained_cfg_overlay=dict(file=PATH), or --checkpoint), or random weights (--no-pretrained)."
        )
    if weights is not None and entry is None:
        # Names and shapes do not determine options such as global_pool.
        kwargs = {**options_of_inference(weights.notes), **kwargs}
        given = {*(pretrained_cfg_overlay or ()), *(pretrained_cfg if isinstance(pretrained_cfg, dict) else ())}
        noted = dict(weights.notes.cfg)
        if "label_names" in noted:
            noted["num_classes"] = len(noted["label_names"])
        cfg = replace(cfg, **{name: value for name, value in noted.items() if name not in given})
    kwargs.setdefault("img_size", cfg.input_size[-2:])
    named_classes = "num_classes" in kwargs or bool(kwargs.get("features_only"))
    if pretrained and kwargs.get("features_only"):
        # Features do not need the head.
        kwargs.setdefault("num_classes", 0)

    def make(**arguments: Any) -> nn.Module:
        model = model_cls(**arguments)
        if weights is not None:
            model.pretrained_cfg = cfg.to_dict()
            _load_pretrained(model, weights, source, pretrained_strict, named_classes)
        return model

    return build_model_with_cfg(
        make,
        variant,
        pretrained and weights is None,
        pretrained_cfg=cast(Any, cfg),
        pretrained_filter_fn=checkpoint_filter_fn,
        pretrained_strict=pretrained_strict,
        cache_dir=cache_dir,
        **kwargs,
    )


def fit_weights(
    content: Mapping[str, Any],
    model: nn.Module,
    source: str = "the checkpoint",
    *,
    strict: bool = True,
    classes: Sequence[str] = (),
) -> tuple[dict[str, Tensor], list[str]]:
    """Return weights adapted to a timm model with another head, image size or number of input channels.

    content: a state dict, or a checkpoint that holds one. The model's own filter renames released weights and resamples
    parameters that depend on the image size. A head for another number of classes is left out, so that the model keeps
    its own. classes: names of the model's classes, if known; a head is also left out if the checkpoint names others.
    Returns the state dict and a sentence for each change. Raises ValueError, in one sentence, for weights that are not
    finite, or that do not fit apart from the head; without `strict`, missing and unexpected ones are allowed.
    """
    given = unwrap_state_dict(content, source)
    require_classifier(given, source)
    require_finite(given, source)
    weights, own = filter_weights(given, model), dict(model.state_dict())
    sentences = []
    resampled = [name for name, value in weights.items() if name in given and given[name].shape != value.shape]
    if resampled:
        sides = [tuple(state[resampled[0]].shape) for state in (given, weights)]
        sentences.append(
            f"{len(resampled)} parameters are resampled, such as {resampled[0]} from {sides[0]} to {sides[1]}."
        )
    for name in parameter_names(model, "first_conv", ".weight"):
        value, expected = weights.get(name), own.get(name)
        if value is not None and expected is not None and value.shape[1] != expected.shape[1]:
            base = value.shape[1]
            weights[name] = adapt_input_conv(expected.shape[1], value, base)
            sentences.append(f"{name} for {base} input channels is adapted to {expected.shape[1]}.")
    noted = list(given.notes.cfg.get("label_names", ()))
    other_names = bool(noted and classes) and noted != list(classes)
    for name in parameter_names(model, "classifier", ".weight", ".bias"):
        fits = name in own and name in weights and weights[name].shape == own[name].shape and not other_names
        if fits or (name in weights and not weights[name].ndim):
            continue
        value, expected = weights.pop(name, None), own.pop(name, None)
        if expected is not None and name.endswith(".weight"):
            which = "is missing and" if value is None else f"for {len(value)} classes{' of other names' * other_names}"
            sentences.append(f"The head {which} is replaced by a new one for {len(expected)} classes.")
    if not strict:
        own = {name: value for name, value in own.items() if name in weights}
        weights = {name: value for name, value in weights.items() if name in own}
    if mismatch := describe_mismatch(own, weights):
        name = getattr(model, "pretrained_cfg", {}).get("architecture") or type(model).__name__
        command = check_command(source if os.path.isfile(source) else "FILE")
        raise ValueError(f"The weights in {source} do not fit {name} and its options: {mismatch}; see `{command}`.")
    return weights, sentences


def require_classifier(weights: Mapping[str, Tensor], source: str) -> None:
    """Raise ValueError for weights of a detector or a segmentor."""
    if any(name.startswith(DENSE_PARTS) for name in weights):
        raise ValueError(f"{source} must hold a classifier, got a detector or segmentor; give its own --config.")


def filter_weights(weights: NotedWeights, model: nn.Module) -> dict[str, Tensor]:
    """Return weights passed through the model's own filter, or the one that timm defines next to the model's class.

    Raises ValueError for weights whose notes name another form of the model.
    """
    if hasattr(model, "from_released"):
        return checkpoint_filter_fn(weights, model)
    found = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    return found(dict(weights), model) if found else dict(weights)


def recorded_weights(entry: Entry, cache_dir: str | Path | None = None) -> NotedWeights:
    """Return recorded weights, see `recorded_file`; the entry replaces the notes of a file without any."""
    read: list[NotedWeights] = []

    def check(path: Path) -> None:
        # An earlier source may have served another file.
        read[:] = [load_weights(path)]
        fit_weights(read[0], timm.create_model(entry.name, device="meta"), entry.file)

    path = recorded_file(entry, check, cache_dir)
    weights = read[0] if read else load_weights(path)
    if weights.notes.model is None:
        weights.notes = Notes(entry.model, entry.options, entry.cfg)
    return weights


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def describe_mismatch(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """Return the differences of two state dicts in a few words, or an empty string if names and shapes agree."""
    missing = [name for name in expected if name not in given and not name.endswith("num_batches_tracked")]
    surplus = [name for name in given if name not in expected]
    both = [name for name in expected if name in given]
    shapes = [name for name in both if _shape(expected[name]) != _shape(given[name])]
    # Such as quantised weights without their scales, which would be read as numbers.
    numbers = [name for name in both if expected[name].is_floating_point()]
    other = [name for name in numbers if given[name].is_sparse or not given[name].is_floating_point()]
    found = {
        "parameters are missing": missing,
        "are unknown to the model": surplus,
        "have another shape": [f"{n} with {_shape(given[n])} instead of {_shape(expected[n])}" for n in shapes],
        "must be dense and floating": [f"{name} in {given[name].dtype}" for name in other],
    }
    return "; ".join(f"{len(names)} {what}, such as {names[0]}" for what, names in found.items() if names)


def parameter_names(model: nn.Module, key: str, *endings: str) -> list[str]:
    """Return parameter names of the `first_conv` or `classifier` in timm's configuration of the model."""
    parts = getattr(model, "pretrained_cfg", {}).get(key) or ()
    return [part + ending for part in ([parts] if isinstance(parts, str) else parts) for ending in endings]


def options_of_inference(notes: Notes) -> dict[str, Any]:
    """Return the noted options without those of training, and without classes, channels and image size."""
    fitted = ("img_size", "num_classes", "in_chans")
    return {name: value for name, value in notes.options.items() if name not in fitted and "drop" not in name}


def _load_pretrained(model: nn.Module, weights: NotedWeights, source: str, strict: bool, named_classes: bool) -> None:
    """Load weights into a fresh model, in place; see `build_model`."""
    heads = parameter_names(model, "classifier", ".weight", ".bias")
    if cast(Any, model).pretrained_cfg["num_classes"] < 0:
        # timm's train.py sets this to leave the head out.
        weights = NotedWeights({k: v for k, v in weights.items() if k not in heads}, weights.notes)
    fitted, sentences = fit_weights(weights, model, source, strict=strict)
    missing, _ = model.load_state_dict(fitted, strict=False)
    for sentence in sentences:
        _logger.info("Weights of %s: %s", source, sentence)
    left_out = [len(weights[name]) for name in heads if name in weights and name in missing]
    if left_out and not named_classes:
        told = f"{source} has another number of classes, so its head is left out; num_classes={left_out[0]} keeps it."
        warnings.warn(told, stacklevel=4)


def _recorded_entry(variant: str, cfg: PretrainedCfg) -> Entry | None:
    """Return the recorded weights of a configuration, or None if it has another source than its tag."""
    entry = ENTRIES.get(f"{variant}.{cfg.tag}")
    if entry is None or cfg.source:
        return None
    known = timm.get_pretrained_cfg(f"{variant}.{cfg.tag}")
    return entry if all(getattr(cfg, key) == getattr(known, key) for key in SOURCES) else None
