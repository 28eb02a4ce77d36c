"""Load weights into models: read, rename, resample, load and report.

`load_into` is the only function that does so. A family of this package defines two methods for it on its model:
`from_released` renames released weights, `resample_state` resamples parameters that depend on the image size.
"""

import json
import logging
import math
import os
import sys
import warnings
import weakref
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import timm
import timm.models._factory
from timm.layers import resample_abs_pos_embed
from timm.models import PretrainedCfg, adapt_input_conv, build_model_with_cfg, resolve_pretrained_cfg
from timm.models._hub import load_state_dict_from_path
from timm.models._input import update_model_args
from torch import Tensor, nn

from soft_vit.weights.fetch import check_command, recorded_file
from soft_vit.weights.files import WeightsError
from soft_vit.weights.index import RECORDED_WEIGHTS, Entry
from soft_vit.weights.read import NotedWeights, load_weights, require_finite, unwrap_state_dict
from soft_vit.weights.spec import ModelSpec

# Names of parameters in detectors and segmentors of this package, of mmdet and of mmseg.
DENSE_PARTS = ("detector.", "backbone.body.", "rpn_head.", "roi_head.", "bbox_head.", "decode_head.")
SOURCES = ("url", "file", "state_dict", "hf_hub_id")
SWAPPED = "swapped_by_soft_vit"
"""The timm name of models whose attention was swapped."""

Head = Literal["fit", "drop", "strict"]
"""For weights with another head: `fit` keeps the model's own head, `drop` loads no head, `strict` refuses them."""

_logger = logging.getLogger(__name__)


@dataclass
class LoadReport:
    """How weights were loaded into a model. Lists hold names of parameters.

    renamed: those with another name in the file. resampled: those of another image size, with their shapes before and
    after. new: those that keep the model's values. left_out: those in the file that are not loaded. changes: a sentence
    for each change of the weights, except of names.
    """

    source: str
    renamed: list[str] = field(default_factory=list)
    resampled: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    new: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return " ".join([f"Weights of {self.source} are loaded.", *self.changes])


def load_into(
    model: nn.Module,
    source: Any,
    head: Head = "fit",
    strict: bool = True,
    *,
    classes: Sequence[str] = (),
) -> LoadReport:
    """Load weights into a model, adapted to its image size, channels and head.

    model: of timm, or any module. source: the path of a file, or a checkpoint or state dict in memory. head: see
    `Head`. strict: False also allows parameters that are missing or unknown, of a module without a timm name also those
    of another shape. classes: names of the model's classes, if known; with head="fit", a head is also left out if the
    record of the weights names others.

    Raises what `load_weights` raises, and ValueError, in one sentence, for weights that are not finite or do not fit.
    """
    weights = load_weights(source) if isinstance(source, str | Path) else unwrap_state_dict(source)
    fitted, report = fit(weights, model, head, strict, classes=classes)
    model.load_state_dict(fitted, strict=False)
    return report


def fit(
    content: Mapping[str, Any],
    model: nn.Module,
    head: Head = "fit",
    strict: bool = True,
    *,
    classes: Sequence[str] = (),
) -> tuple[dict[str, Tensor], LoadReport]:
    """Return weights as `load_into` loads them, and its report; the model stays as it is."""
    loaded = unwrap_state_dict(content)
    report = LoadReport(loaded.source)
    of_timm = bool(getattr(model, "pretrained_cfg", None))
    if of_timm:
        require_classifier(loaded)
    require_finite(loaded, loaded.source)
    weights, expected = rename_and_resample(loaded, model, report), dict(model.state_dict())
    _fit_channels(model, weights, expected, report)
    _fit_head(model, loaded, weights, expected, report, head, classes)
    if not strict:
        common = expected.keys() & weights.keys()
        fitting = {name for name in common if of_timm or expected[name].shape == weights[name].shape}
        report.new += [name for name in expected if name not in fitting]
        report.left_out += [name for name in weights if name not in fitting]
        if expected and not fitting:
            mismatch = describe_mismatch(expected, weights)
            raise ValueError(f"The weights in {loaded.source} must be of this model: {mismatch}.")
        expected, weights = ({name: x for name, x in state.items() if name in fitting} for state in (expected, weights))
    if mismatch := describe_mismatch(expected, weights):
        name = getattr(model, "pretrained_cfg", {}).get("architecture") or type(model).__name__
        command = check_command(loaded.source if os.path.isfile(loaded.source) else "FILE")
        raise ValueError(
            f"The weights in {loaded.source} must fit {name} and its options: {mismatch}; see `{command}`."
        )
    return weights, report


def rename_and_resample(loaded: NotedWeights, model: Any, report: LoadReport | None = None) -> dict[str, Tensor]:
    """Return weights under the names of a timm model, by its own filter, resampled to its image size.

    Raises ValueError for weights whose record names another form of the model.
    """
    _require_same_swap(loaded.spec, model)
    is_own = hasattr(model, "from_released")
    is_vit = hasattr(getattr(model, "patch_embed", None), "grid_size") and hasattr(model, "num_prefix_tokens")
    weights = model.from_released(loaded) if is_own else dict(loaded)
    before = {name: tuple(value.shape) for name, value in weights.items()}
    if (is_own and hasattr(model, "resample_state")) or is_vit:
        resample = getattr(model, "resample_state", None) or partial(resample_vit, model)
        told = is_own and getattr(model, "tells_grid", lambda state: False)(loaded)
        size = loaded.spec.img_size or (None if told else _assumed_size(weights, model, loaded.source))
        resample("", weights, size)
    if not is_own and (timm_filter := getattr(sys.modules.get(type(model).__module__), "checkpoint_filter_fn", None)):
        # timm's filter reads from here for which size the weights are: that of the model, if they are resampled.
        own_size = {"img_size": model.patch_embed.img_size} if is_vit else {}
        model.pretrained_model_args = {**loaded.spec.options, **own_size}
        weights = timm_filter(weights, model)
    if report is not None:
        report.renamed += [name for name in weights if name not in loaded]
        shapes = {name: (before[name], tuple(x.shape)) for name, x in weights.items() if name in before}
        report.resampled |= {name: (old, new) for name, (old, new) in shapes.items() if old != new}
        for name, (old, new) in [*report.resampled.items()][:1]:
            count = len(report.resampled)
            report.changes.append(f"{count} parameters are resampled, such as {name} from {old} to {new}.")
    return weights


def _fit_channels(model: nn.Module, weights: dict[str, Tensor], state: dict[str, Tensor], report: LoadReport) -> None:
    """Adapt the first convolution, in place, to the model's number of channels."""
    for name in parameter_names(model, "first_conv", ".weight"):
        value, expected = weights.get(name), state.get(name)
        if value is not None and expected is not None and value.shape[1] != expected.shape[1]:
            base = value.shape[1]
            weights[name] = adapt_input_conv(expected.shape[1], value, base)
            report.changes.append(f"{name} for {base} input channels is adapted to {expected.shape[1]}.")


def _fit_head(
    model: nn.Module,
    loaded: NotedWeights,
    weights: dict[str, Tensor],
    state: dict[str, Tensor],
    report: LoadReport,
    head: Head,
    classes: Sequence[str],
) -> None:
    """Remove, in place, a head that is not loaded from the weights and from the parameters that need one."""
    if head == "strict":
        return
    recorded = list(loaded.spec.label_names)
    other_names = bool(recorded and classes) and recorded != list(classes)
    for name in parameter_names(model, "classifier", ".weight", ".bias"):
        fits = name in state and name in weights and weights[name].shape == state[name].shape and not other_names
        if (fits and head == "fit") or (name in weights and not weights[name].ndim):
            continue
        value, expected = weights.pop(name, None), state.pop(name, None)
        report.left_out += [name] if value is not None else []
        report.new += [name] if expected is not None else []
        if expected is not None and name.endswith(".weight"):
            which = "is missing and" if value is None else f"for {len(value)} classes{' of other names' * other_names}"
            report.changes.append(f"The head {which} is replaced by a new one for {len(expected)} classes.")


def require_classifier(weights: NotedWeights) -> None:
    """Raise ValueError for weights of a detector or a segmentor."""
    if any(name.startswith(DENSE_PARTS) for name in weights):
        raise ValueError(
            f"{weights.source} must hold a classifier, got a detector or segmentor; give its own --config."
        )


def _require_same_swap(spec: ModelSpec, model: Any) -> None:
    """Raise ValueError for weights of a swapped model in another one; names and shapes of both may agree."""
    of_weights, of_model = (_swaps(options) for options in (spec.options, getattr(model, "_model_args", {})))
    if of_weights and of_weights != of_model:
        swap = f"{SWAPPED} with attn_layer={of_weights}, as in the weights"
        raise ValueError(f"The model must be {swap}, got {of_model or None}.")


def _swaps(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the notes of swaps in a form that compares."""
    notes = options.get("attn_layer")
    notes = notes if isinstance(notes, list) else [notes]
    # In JSON, as files hold them, tuples are lists.
    return [json.loads(json.dumps(dict(note))) for note in notes if isinstance(note, Mapping)]


def _assumed_size(weights: Mapping[str, Tensor], model: Any, source: str) -> tuple[int, int] | None:
    """Return the image size of weights that do not note theirs: the usual one, otherwise the model's own.

    None if neither has the number of positions of the weights, which are then taken for those of a square. Warns where
    it is not the usual one, as maps of several shapes have as many positions; None without position embeddings.
    """
    usual = tuple(getattr(model, "pretrained_cfg", {}).get("input_size") or ())[1:]
    current = getattr(model, "img_size", None) or model.patch_embed.img_size
    for size in (usual, current):
        expected = position_counts(model, tuple(size)) if size else {}
        counts = {name: weights[name].shape[1] for name in expected if name in weights and weights[name].ndim == 3}
        if size and not counts:
            return None
        if size and all(expected[name] == count for name, count in counts.items()):
            if size != usual:
                _warn_of_size(source, f"{size[0]} x {size[1]} pixels")
            return tuple(size)
    _warn_of_size(source, "a square")
    return None


def _warn_of_size(source: str, assumed: str) -> None:
    warnings.warn(
        f"{source} does not note the img_size of its position embeddings, which is taken for {assumed}; give another "
        "one as pretrained_cfg_overlay=dict(file=FILE, input_size=(3, HEIGHT, WIDTH)).",
        stacklevel=6,
    )


def position_counts(model: Any, img_size: tuple[int, int]) -> dict[str, int]:
    """Return the number of positions, with prefix tokens, of each position embedding of a model for an image size."""
    if hasattr(model, "position_counts"):
        return model.position_counts(img_size)
    if getattr(model, "pos_embed", None) is None:
        return {}
    height, width = _vit_grid(model, img_size)
    prefix = 0 if getattr(model, "no_embed_class", False) else model.num_prefix_tokens
    return {"pos_embed": prefix + height * width}


def resample_vit(
    model: Any, prefix: str, weights: MutableMapping[str, Tensor], img_size: tuple[int, int] | None = None
) -> None:
    """Resample, in place, a ViT's position embedding, and weights of its attentions that belong to one map.

    prefix: of the model's names in weights. img_size: that the weights are for, by default a square one.
    """
    name, embedding = f"{prefix}pos_embed", getattr(model, "pos_embed", None)
    grid = _vit_grid(model, img_size) if img_size else None
    value = weights.get(name)
    if embedding is not None and value is not None and value.ndim == 3 and value.shape[2] == embedding.shape[2]:
        prefix_tokens = 0 if getattr(model, "no_embed_class", False) else model.num_prefix_tokens
        count = value.shape[1] - prefix_tokens
        side = math.isqrt(max(count, 0))
        square = None if value.shape == embedding.shape or side * side != count or not side else (side, side)
        old = grid if grid is not None and math.prod(grid) == count else square
        if old is not None and old != tuple(model.patch_embed.grid_size):
            weights[name] = resample_abs_pos_embed(value, model.patch_embed.grid_size, old, prefix_tokens)
    for module_name, module in model.named_modules():
        if module is not model and hasattr(module, "resample_state"):
            module.resample_state(f"{prefix}{module_name}.", weights, grid)


def _vit_grid(model: Any, img_size: tuple[int, int]) -> tuple[int, int]:
    patch = model.patch_embed.patch_size
    return img_size[0] // patch[0], img_size[1] // patch[1]


def checkpoint_filter_fn(state_dict: Mapping[str, Tensor], model: Any) -> dict[str, Tensor]:
    """Return weights under the names of a model of this package, resampled to its image size.

    Released and converted weights are taken; converted ones of that size are returned unchanged.
    """
    if not isinstance(state_dict, NotedWeights):
        # timm sets these from the config.json of a model that it saved.
        spec = ModelSpec(None, getattr(model, "pretrained_model_args", {}))
        state_dict = NotedWeights(state_dict, spec)
    return rename_and_resample(state_dict, model)


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
    entry = _recorded_entry(variant, cfg)
    if entry is not None:
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
        raise WeightsError(
            f"No pretrained weights exist for {variant}; choose one of timm.list_pretrained(), or give a file "
            "(pretrained_cfg_overlay=dict(file=PATH), or --checkpoint), or random weights (--no-pretrained)."
        )
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
    saved = kwargs.get("pretrained_model_args")
    weights = pretrained_weights(variant, cfg, cache_dir, saved) if pretrained else None
    spec = ModelSpec()
    if weights is not None:
        overridden = {*(pretrained_cfg_overlay or ()), *(pretrained_cfg if isinstance(pretrained_cfg, dict) else ())}
        if weights.spec.img_size is None and "input_size" in overridden:
            size = {"img_size": cfg.input_size[1:]}
            weights.spec = replace(weights.spec, options={**weights.spec.options, **size})
        spec = complete_spec(weights, variant)
        recorded = {name: value for name, value in spec.entries(kwargs).items() if name not in overridden}
        # timm saves the configuration with the model, which must not show a path of this machine.
        cfg = replace(cfg, file=None, state_dict=None, source=None, **recorded)
    kwargs = spec.arguments(kwargs, arguments)
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
    try:
        model = timm.create_model(name, pretrained_cfg_overlay=overlay, **spec.arguments(options))
    except (RuntimeError, TypeError, AttributeError, AssertionError) as error:
        raise ValueError(f"{name} cannot be made with the options of {weights.source} ({error}).") from error
    return model, load_into(model, weights, head)


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
    options, weight = dict(cast(Any, model)._model_args), next(model.parameters())
    overlay = {"file": str(checkpoint_path)}
    again = timm.create_model(
        name, pretrained=True, pretrained_cfg_overlay=overlay, device=weight.device, dtype=weight.dtype, **options
    )
    for hook in cast(Any, again)._load_state_dict_pre_hooks.values():
        hook.module = weakref.ref(model)
    model.__class__ = type(again)
    object.__setattr__(model, "__dict__", again.__dict__)
    return None


_load_checkpoint_of_timm = timm.models._factory.load_checkpoint
timm.models._factory.load_checkpoint = load_checkpoint  # type: ignore[assignment]


def is_own_model(name: str) -> bool:
    """Return whether a timm name, with or without a tag, is that of a model of this package."""
    name = name.partition(".")[0]
    return timm.is_model(name) and timm.models.model_entrypoint(name).__module__.startswith("soft_vit.")


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def describe_mismatch(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> str:
    """Return the differences of two state dicts in a few words, or an empty string if names and shapes agree."""
    missing = [name for name in expected if name not in weights and not name.endswith("num_batches_tracked")]
    surplus = [name for name in weights if name not in expected]
    common = [name for name in expected if name in weights]
    shapes = [name for name in common if _shape(expected[name]) != _shape(weights[name])]
    # Such as quantised weights without their scales, which would be read as numbers.
    numbers = [name for name in common if expected[name].is_floating_point()]
    other = [name for name in numbers if weights[name].is_sparse or not weights[name].is_floating_point()]
    differences = {
        "parameters are missing": missing,
        "are unknown to the model": surplus,
        "have another shape": [f"{n} with {_shape(weights[n])} instead of {_shape(expected[n])}" for n in shapes],
        "must be dense and floating": [f"{name} in {weights[name].dtype}" for name in other],
    }
    return "; ".join(f"{len(names)} {what}, such as {names[0]}" for what, names in differences.items() if names)


def parameter_names(model: nn.Module, key: str, *endings: str) -> list[str]:
    """Return parameter names of the `first_conv` or `classifier` in timm's configuration of the model."""
    parts = getattr(model, "pretrained_cfg", {}).get(key) or ()
    return [part + ending for part in ([parts] if isinstance(parts, str) else parts) for ending in endings]


def _recorded_entry(variant: str, cfg: PretrainedCfg) -> Entry | None:
    """Return the recorded weights of a configuration, or None if it has another source than its tag."""
    entry = RECORDED_WEIGHTS.get(f"{variant}.{cfg.tag}")
    if entry is None or cfg.source:
        return None
    known = timm.get_pretrained_cfg(f"{variant}.{cfg.tag}")
    return entry if all(getattr(cfg, key) == getattr(known, key) for key in SOURCES) else None
