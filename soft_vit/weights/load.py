"""From the name of weights to a model that has them: read once, unwrap once, rename and resample, load.

What differs between families stands on the model: `own_state_dict` renames released weights, `resample_state` resamples
what belongs to one size of images.
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

__all__ = [
    "build_model",
    "checkpoint_filter_fn",
    "describe_mismatch",
    "filter_weights",
    "fit_weights",
    "load_into",
    "options_of_inference",
    "parameter_names",
    "recorded_weights",
]

SOURCES = ("url", "file", "state_dict", "hf_hub_id")

_logger = logging.getLogger(__name__)


def checkpoint_filter_fn(state_dict: Mapping[str, Tensor], model: Any) -> dict[str, Tensor]:
    """Return released or converted weights under the names of a model of this package, resampled to its image size.

    Converted weights of that size pass unchanged. A head for other classes and a first convolution for other channels
    are adapted later.
    """
    img_size = state_dict.notes.img_size() if isinstance(state_dict, NotedWeights) else None
    # timm passes on the image size that it noted next to a model it saved.
    img_size = img_size or getattr(model, "pretrained_model_args", {}).get("img_size")
    weights = model.own_state_dict(state_dict)
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
    """Build a model for timm, as by its `build_model_with_cfg`; recorded weights and files are fitted here.

    variant: a name that is registered with timm. pretrained_cfg: for timm, a tag, a dict or a PretrainedCfg.
    pretrained_strict: refuse weights that lack parameters of the model or have others. Options that a file notes, such
    as global_pool, are the model's unless kwargs give others. Raises WeightsError for recorded
    weights that cannot be had, FileNotFoundError for a missing file, and what `fit_weights` raises. A UserWarning says
    if the head of the weights is left out without being asked for.
    """
    cfg = resolve_pretrained_cfg(variant, pretrained_cfg, pretrained_cfg_overlay)
    weights, source = None, variant
    entry = _recorded_entry(variant, cfg) if pretrained else None
    if entry is not None:
        weights, source = recorded_weights(entry, cache_dir), f"{variant}.{cfg.tag}"
        if entry.license is None:
            _logger.warning(
                "The authors of %s state no licence for these weights; ask them before you use them.", source
            )
        kwargs = {**entry.options, **kwargs}
        # A saved model takes its configuration along, in which no path belongs.
        cfg = replace(cfg, file=None)
    elif pretrained and cfg.state_dict:
        weights = unwrap_state_dict(cfg.state_dict, "state_dict")
        cfg = replace(cfg, state_dict=None)
    elif pretrained and cfg.file and not cfg.source:
        weights, source = load_weights(cfg.file), str(cfg.file)
    elif pretrained and not cfg.has_weights:
        raise WeightsError(_without_weights(variant))
    if weights is not None and entry is None:
        # Names and shapes do not determine options such as global_pool.
        kwargs = {**options_of_inference(weights.notes), **kwargs}
    kwargs.setdefault("img_size", cfg.input_size[-2:])
    named_classes = "num_classes" in kwargs or bool(kwargs.get("features_only"))
    if pretrained and kwargs.get("features_only"):
        # The head is not kept, so that of the file is not missed.
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
    """Return weights of a timm model made to fit one with another head, image size or number of input channels.

    content: a state dict, or a checkpoint that holds one. The model's own filter renames released weights and
    resamples what belongs to a grid. A head for other classes is left out, so that the model keeps its own.
    classes: names of the model's classes, if known; where the checkpoint names its own, rows of the head follow the
    names. Returns the state dict and a sentence for each change. Raises ValueError, in one sentence, for weights that
    are not finite, or that do not fit apart from the head; without `strict`, missing and surplus ones are allowed.
    """
    given = unwrap_state_dict(content, source)
    require_finite(given, source)
    weights = _filtered(given, model)
    own = model.state_dict()
    sentences = []
    changed = [name for name, value in weights.items() if name in given and given[name].shape != value.shape]
    if changed:
        sentences.append(
            f"{len(changed)} parameters that belong to a grid are resampled, such as {changed[0]} from "
            f"{tuple(given[changed[0]].shape)} to {tuple(weights[changed[0]].shape)}."
        )
    for name in parameter_names(model, "first_conv", ".weight"):
        value, expected = weights.get(name), own.get(name)
        if value is not None and expected is not None and value.shape[1] != expected.shape[1]:
            base = value.shape[1]
            weights[name] = adapt_input_conv(expected.shape[1], value, base)
            sentences.append(f"{name} for {base} input channels is adapted to {expected.shape[1]}.")
    head = set(parameter_names(model, "classifier", ".weight", ".bias"))
    for name in head - own.keys():
        # The model was made without a head.
        weights.pop(name, None)
    head &= own.keys()
    unfit = {name for name in head if name not in weights or weights[name].shape != own[name].shape}
    named = list(given.notes.cfg.get("label_names", ()))
    other_names = ""
    if not unfit and named and classes and named != list(classes):
        if len(set(named)) == len(named) and sorted(named) == sorted(classes):
            rows = [named.index(name) for name in classes]
            weights.update({name: weights[name][rows] for name in head})
            sentences.append("The rows of the head follow the names of the classes, whose order is another one.")
        else:
            unfit, other_names = head, " of other names"
    for name in sorted(unfit):
        if name.endswith(".weight"):
            which = f"for {weights[name].shape[0]} classes{other_names}" if name in weights else "is missing and"
            sentences.append(f"The head {which} is replaced by a new one for {own[name].shape[0]} classes.")
        weights.pop(name, None)
    expected = {name: value for name, value in own.items() if name not in unfit}
    if not strict:
        expected = {name: value for name, value in expected.items() if name in weights}
        weights = {name: value for name, value in weights.items() if name in expected}
    if mismatch := describe_mismatch(expected, weights):
        name = getattr(model, "pretrained_cfg", {}).get("architecture") or type(model).__name__
        path = Path(source) if os.path.isfile(source) else "FILE"
        raise ValueError(
            f"The weights in {source} do not fit {name} with its options: {mismatch}; `{check_command(path)}` says "
            "which model they belong to."
        )
    return weights, sentences


def filter_weights(content: Mapping[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Return what the model's own filter makes of weights; raises ValueError for weights of another form of it."""
    return _filtered(unwrap_state_dict(content), model)


def load_into(model: nn.Module, content: Mapping[str, Any], source: str = "the checkpoint") -> list[str]:
    """Load weights into a timm model, in place; see `fit_weights`. The model is unchanged if they do not fit."""
    weights, sentences = fit_weights(content, model, source)
    model.load_state_dict(weights, strict=False)
    return sentences


def recorded_weights(entry: Entry, cache_dir: str | Path | None = None) -> NotedWeights:
    """Return recorded weights, see `recorded_file`, with what their entry says if the file itself notes nothing."""
    read: list[NotedWeights] = []

    def check(path: Path) -> None:
        # Of several sources, an earlier one may have served another file.
        read[:] = [load_weights(path)]
        _require_recorded_model(entry, read[0])

    path = recorded_file(entry, check, cache_dir)
    weights = read[0] if read else load_weights(path)
    if weights.notes.model is None:
        weights.notes = Notes(entry.model, entry.options, entry.cfg)
    return weights


def _require_recorded_model(entry: Entry, weights: NotedWeights) -> None:
    """ValueError for weights that fit no model that their file is recorded for, which may be several."""
    names = dict.fromkeys([entry.name, *(other.name for other in ENTRIES.values() if other.file == entry.file)])
    reasons = []
    for name in names:
        try:
            fit_weights(weights, timm.create_model(name, device="meta"), entry.file)
        except ValueError as error:
            reasons.append(str(error))
        else:
            return
    raise ValueError(f"{entry.file} is recorded for {' or '.join(names)}: {reasons[0]}")


def describe_mismatch(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """Return what differs between two state dicts, in a few words; empty if names and shapes agree."""
    missing = [name for name in expected if name not in given and not name.endswith("num_batches_tracked")]
    surplus = [name for name in given if name not in expected]
    shapes = [name for name in expected if name in given and tuple(expected[name].shape) != tuple(given[name].shape)]
    parts = []
    if missing:
        parts.append(f"{len(missing)} parameters are missing, such as {missing[0]}")
    if surplus:
        parts.append(f"{len(surplus)} are unknown to the model, such as {surplus[0]}")
    if shapes:
        name = shapes[0]
        parts.append(
            f"{len(shapes)} have another shape, such as {name} with {tuple(given[name].shape)} "
            f"instead of {tuple(expected[name].shape)}"
        )
    return "; ".join(parts)


def parameter_names(model: nn.Module, key: str, *endings: str) -> list[str]:
    """Return parameter names of a part, `first_conv` or `classifier`, that timm's configuration of the model names."""
    parts = getattr(model, "pretrained_cfg", {}).get(key) or ()
    return [part + ending for part in ([parts] if isinstance(parts, str) else parts) for ending in endings]


def _filtered(weights: NotedWeights, model: nn.Module) -> dict[str, Tensor]:
    """Return what the filter of a model makes of weights: its own, or the one that timm defines next to its class."""
    if hasattr(model, "own_state_dict"):
        return checkpoint_filter_fn(weights, model)
    found = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    return found(dict(weights), model) if found else dict(weights)


def options_of_inference(notes: Notes) -> dict[str, Any]:
    """Return the options that a file notes, without those of training, of its head, channels and images."""
    fitted = ("img_size", "num_classes", "in_chans")
    return {name: value for name, value in notes.options.items() if name not in fitted and "drop" not in name}


def _load_pretrained(
    model: nn.Module,
    weights: NotedWeights,
    source: str,
    strict: bool,
    named_classes: bool,
) -> None:
    """Load weights into a fresh model, in place; see `build_model`."""
    heads = parameter_names(model, "classifier", ".weight", ".bias")
    classes = next((weights[name].shape[0] for name in heads if name in weights), 0)
    if cast(Any, model).pretrained_cfg["num_classes"] < 0:
        # How timm's train.py asks to leave the head out.
        weights = NotedWeights({k: v for k, v in weights.items() if k not in heads}, weights.notes)
        named_classes = True
    fitted, sentences = fit_weights(weights, model, source, strict=strict)
    model.load_state_dict(fitted, strict=False)
    if classes and not named_classes and any(name not in fitted for name in heads if name in model.state_dict()):
        warnings.warn(
            f"{source} has {classes} classes and the model {model.num_classes}: its head is left out; give "
            f"num_classes={classes} to keep it.",
            stacklevel=4,
        )
    for sentence in sentences:
        _logger.info("Weights of %s: %s", source, sentence)


def _recorded_entry(variant: str, cfg: PretrainedCfg) -> Entry | None:
    """Return the recorded weights that a configuration means; None if it has a tag of ours and a source of its own."""
    entry = ENTRIES.get(f"{variant}.{cfg.tag}")
    if entry is None or cfg.source:
        return None
    known = timm.get_pretrained_cfg(f"{variant}.{cfg.tag}")
    return entry if all(getattr(cfg, key) == getattr(known, key) for key in SOURCES) else None


def _without_weights(model: str) -> str:
    size = model.rsplit("_", 1)[-1]
    alike = [name for name, entry in ENTRIES.items() if entry.model.endswith(f"_{size}")]
    return (
        f"No pretrained weights exist for {model}; choose {' or '.join(alike) or 'one of timm.list_pretrained()'}, or "
        "give a file (pretrained_cfg_overlay=dict(file=PATH), or --checkpoint), or random weights (--no-pretrained)."
    )
