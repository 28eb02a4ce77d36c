"""Build models by name with the weights that timm's configuration, a file or the index names."""

import logging
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import timm
import timm.models._factory
from timm.layers import get_device_dtype
from timm.models import PretrainedCfg, build_model_with_cfg, resolve_pretrained_cfg
from timm.models._hub import load_state_dict_from_path
from timm.models._input import update_model_args
from torch import nn

from soft_vit.weights.fetch import check_command, recorded_file
from soft_vit.weights.files import WeightsError
from soft_vit.weights.index import RECORDED_WEIGHTS, Entry
from soft_vit.weights.load import SWAPPED, Head, LoadReport, checkpoint_filter_fn, fit, is_own_model, load_into
from soft_vit.weights.read import NotedWeights, load_weights, unwrap_state_dict
from soft_vit.weights.spec import ModelSpec

SOURCES = ("url", "file", "state_dict", "hf_hub_id")
"""Entries of timm's configuration that say where weights are."""

_logger = logging.getLogger(__name__)


def complete_spec(weights: NotedWeights, name: str | None = None) -> ModelSpec:
    """Return the record of weights, with the classes and channels that their shapes tell, and the size of their images.

    name: the timm name of the model that is built, by default the recorded one. Raises ValueError for a swapped model
    under another name.
    """
    spec = weights.spec
    name = name or str(spec.model)
    if spec.model == SWAPPED and ":" not in name and name != SWAPPED:
        raise ValueError(f"The model must be {SWAPPED}, as {weights.source} notes, got {name}.")
    cfg = resolve_pretrained_cfg(str(spec.options.get("architecture") or name))
    measured: dict[str, Any] = {}
    for key, option, axis in (("classifier", "num_classes", 0), ("first_conv", "in_chans", 1)):
        parts = getattr(cfg, key) or ()
        first = parts if isinstance(parts, str) else next(iter(parts), "")
        value = weights.get(f"{first}.weight")
        if value is not None and value.ndim > axis:
            measured[option] = value.shape[axis]
    if "input_size" in spec.cfg and is_own_model(name):
        measured["img_size"] = tuple(spec.cfg["input_size"][1:])
    return replace(spec, options={**measured, **spec.options})


def pretrained_weights(
    variant: str, cfg: PretrainedCfg, cache_dir: str | Path | None = None, options: Mapping[str, Any] | None = None
) -> NotedWeights | None:
    """Return the weights that timm's configuration names, or None for those that timm downloads itself.

    options: arguments of the saved model, as timm reads them from its folder. Raises WeightsError if there are none, or
    if recorded ones are not available, and FileNotFoundError for a missing file.
    """
    if (entry := _recorded_entry(variant, cfg)) is not None:
        weights = recorded_weights(entry, cache_dir)
        weights.source = f"{variant}.{cfg.tag}"
        if entry.license is None:
            _logger.warning("The authors of %s state no licence for these weights; ask them for one.", weights.source)
        return weights
    if cfg.state_dict:
        return unwrap_state_dict(cfg.state_dict, "state_dict")
    if cfg.file and cfg.source == "local-dir":
        return NotedWeights(load_state_dict_from_path(cfg.file), ModelSpec.of_cfg(cfg, options or {}), str(cfg.file))
    if cfg.file and not cfg.source:
        return load_weights(cfg.file)
    if not cfg.has_weights:
        file = "a file (pretrained_cfg_overlay=dict(file=PATH), or --checkpoint)"
        choice = f"choose one of timm.list_pretrained(), or give {file}, or random weights (--no-pretrained)"
        raise WeightsError(f"No pretrained weights exist for {variant}; {choice}.")
    return None


def build_model(
    model_cls: type[nn.Module],
    variant: str,
    pretrained: bool = False,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: dict[str, Any] | None = None,
    pretrained_strict: bool = True,
    cache_dir: str | Path | None = None,
    *,
    arguments: Mapping[str, Any],
    **kwargs: Any,
) -> nn.Module:
    """Build a model as timm's `build_model_with_cfg` does; recorded weights and files are loaded here.

    variant: a name that is registered with timm, and arguments those of the name. pretrained_cfg: as in timm, a tag, a
    dict or a PretrainedCfg. pretrained_strict: refuse weights with missing or unexpected parameters. What a file notes,
    such as options, image size, mean, std and classes, becomes the model's unless kwargs override it, see `ModelSpec`.
    Raises what `pretrained_weights` and `load_into` raise.
    """
    cfg = resolve_pretrained_cfg(variant, pretrained_cfg, pretrained_cfg_overlay)
    weights = pretrained_weights(variant, cfg, cache_dir, kwargs.get("pretrained_model_args")) if pretrained else None
    spec = ModelSpec()
    if weights is not None:
        # That of a folder is its record, and not the caller's.
        given = pretrained_cfg if isinstance(pretrained_cfg, dict) and cfg.source != "local-dir" else ()
        overridden = {*(pretrained_cfg_overlay or ()), *given}
        if weights.spec.img_size is None and "input_size" in overridden:
            weights.spec = replace(weights.spec, options={**weights.spec.options, "img_size": cfg.input_size[1:]})
        spec = complete_spec(weights, variant)
        recorded = {name: value for name, value in spec.entries(kwargs).items() if name not in overridden}
        # timm saves the configuration with the model, which must not show a path of this machine.
        cfg = replace(cfg, file=None, state_dict=None, source=None, **recorded)
    # Other ways to take features miss what a model does between its stages.
    kwargs = {name: value for name, value in spec.arguments(kwargs, arguments).items() if name != "feature_cls"}
    kwargs.setdefault("img_size", cfg.input_size[-2:])
    if pretrained and kwargs.get("features_only"):
        # Features do not need the head.
        kwargs["num_classes"] = 0

    def make(**options: Any) -> nn.Module:
        model = model_cls(**options)
        if weights is not None:
            model.pretrained_cfg = cfg.to_dict()
            # timm's train.py sets this to leave the head out.
            report = load_into(model, weights, "drop" if cfg.num_classes < 0 else "fit", pretrained_strict)
            for sentence in report.changes:
                _logger.info("Weights of %s: %s", report.source, sentence)
        return model

    model = build_model_with_cfg(
        make,
        variant,
        pretrained and weights is None,
        pretrained_cfg=cast(Any, cfg),
        pretrained_filter_fn=checkpoint_filter_fn,
        pretrained_strict=pretrained_strict,
        cache_dir=cache_dir,
        **kwargs,
    )
    # timm records what the caller gives; the file's options belong to the model as well.
    update_model_args(model, **spec.arguments({}))
    if not (pretrained or cfg.source):
        # For `load_checkpoint`.
        cast(Any, model).given_cfg = pretrained_cfg, pretrained_cfg_overlay or {}
    return model


def model_of_file(
    name: str | None, source: str | Path | NotedWeights, head: Head = "fit", **options: Any
) -> tuple[nn.Module, LoadReport]:
    """Return a timm model with the weights of a file, and the report of their loading.

    name: of the model, by default the recorded one. source: a path, or weights that were read. head: see `load_into`.
    options: of `timm.create_model`, which override what the file notes. Raises what `load_into` raises, and ValueError
    for options that do not fit.
    """
    weights = source if isinstance(source, NotedWeights) else load_weights(source)
    name = name or weights.spec.model
    if name is None or not (":" in name or timm.is_model(name)):
        command = check_command(weights.source)
        raise ValueError(f"{weights.source} must note its model, or its name be given; see `{command}`.")
    spec = complete_spec(weights, name)
    overlay = {**spec.entries(options), **(options.pop("pretrained_cfg_overlay", None) or {})}
    model = create_noted(name, weights, pretrained_cfg_overlay=overlay, **options)
    return model, load_into(model, weights, head)


def create_noted(name: str, weights: NotedWeights, **options: Any) -> nn.Module:
    """Return a timm model with the options that weights note and those given; ValueError where they do not fit."""
    try:
        return timm.create_model(name, **complete_spec(weights, name).arguments(options))
    except (RuntimeError, TypeError, AttributeError, AssertionError) as error:
        raise ValueError(f"{name} cannot be made with the options of {weights.source} ({error}).") from error


def recorded_weights(entry: Entry, cache_dir: str | Path | None = None) -> NotedWeights:
    """Return recorded weights, see `recorded_file`; the entry replaces the record of a file without any."""
    read: list[NotedWeights] = []

    def check(path: Path) -> None:
        # An earlier source may have served another file.
        read[:] = [load_weights(path)]
        fit(read[0], timm.create_model(entry.name, device="meta"))

    path = recorded_file(entry, check, cache_dir)
    weights = read[0] if read else load_weights(path)
    if weights.spec.model is None:
        weights.spec = ModelSpec.of_cfg(resolve_pretrained_cfg(entry.name), entry.options)
    return weights


def load_checkpoint(model: nn.Module, checkpoint_path: str | Path, *args: Any, **kwargs: Any) -> Any:
    """Load a file as timm's `checkpoint_path=` does; a model of this package becomes that of `pretrained=True`.

    The model was built before the file was read, so it is built again with what the file notes.
    """
    name = getattr(model, "pretrained_cfg", {}).get("architecture") or ""
    if not is_own_model(name):
        return _load_checkpoint_of_timm(model, str(checkpoint_path), *args, **kwargs)
    options: dict[str, Any] = {**cast(Any, model)._model_args, **get_device_dtype(model)}
    cfg, overlay = getattr(model, "given_cfg", (None, {}))
    overlay = {**overlay, "file": str(checkpoint_path)}
    again = timm.create_model(name, pretrained=True, pretrained_cfg=cfg, pretrained_cfg_overlay=overlay, **options)
    for hook in cast(Any, again)._load_state_dict_pre_hooks.values():
        hook.module = weakref.ref(model)
    model.__class__ = type(again)
    object.__setattr__(model, "__dict__", again.__dict__)


_load_checkpoint_of_timm = timm.models._factory.load_checkpoint
timm.models._factory.load_checkpoint = load_checkpoint  # type: ignore[assignment]


def _recorded_entry(variant: str, cfg: PretrainedCfg) -> Entry | None:
    """Return the recorded weights of a configuration, or None if it has another source than its tag."""
    entry = RECORDED_WEIGHTS.get(f"{variant}.{cfg.tag}")
    if entry is None or cfg.source:
        return None
    known = timm.get_pretrained_cfg(f"{variant}.{cfg.tag}")
    return entry if all(getattr(cfg, key) == getattr(known, key) for key in SOURCES) else None
