"""Load weights into models: read, rename, resample, load and report.

`load_into` is the only function that does so. A family of this package defines two methods for it on its model:
`from_released` renames released weights, `resample_state` resamples parameters that depend on the image size.
"""

import json
import os
import sys
import warnings
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from timm.layers import resample_abs_pos_embed
from timm.models import adapt_input_conv, is_model, model_entrypoint
from torch import Tensor, nn

from soft_vit.layers.embed import grid_of_positions
from soft_vit.ops.layout import Size
from soft_vit.weights.fetch import check_command
from soft_vit.weights.read import NotedWeights, load_weights, require_finite, unwrap_state_dict
from soft_vit.weights.spec import ModelSpec

# Names of parameters in detectors and segmentors of this package, of mmdet and of mmseg.
DENSE_PARTS = ("detector.", "backbone.body.", "rpn_head.", "roi_head.", "bbox_head.", "decode_head.")
SWAPPED = "swapped_by_soft_vit"
"""The timm name of models whose attention was swapped."""

Head = Literal["fit", "drop", "strict"]
"""For weights with another head: `fit` keeps the model's own head, `drop` loads no head, `strict` refuses them.

`strict` also refuses weights that note another model of this package."""


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


def load_into(
    model: nn.Module, source: Any, head: Head = "fit", strict: bool = True, *, classes: Sequence[str] = ()
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
    if of_timm := bool(getattr(model, "pretrained_cfg", None)):
        require_classifier(loaded)
    require_finite(loaded, loaded.source)
    noted, name = loaded.spec.model or "", getattr(model, "pretrained_cfg", {}).get("architecture") or ""
    if head == "strict" and noted.partition(".")[0] != name and is_own_model(noted) and is_own_model(name):
        # Parameters of many attentions have the same names and shapes.
        raise ValueError(f"The model must be {noted}, as {loaded.source} notes, got {name}.")
    weights, expected = rename_and_resample(loaded, model, report), dict(model.state_dict())
    _fit_channels(model, weights, expected, report)
    if head != "strict":
        recorded = list(loaded.spec.label_names)
        _fit_head(model, weights, expected, report, head, bool(recorded and classes) and recorded != list(classes))
    if not strict:
        if mismatch := describe_mismatch(expected, weights):
            report.changes.append(f"What does not fit keeps the model's values: {mismatch}.")
        common = expected.keys() & weights.keys()
        fitting = {name for name in common if of_timm or expected[name].shape == weights[name].shape}
        report.new += [name for name in expected if name not in fitting]
        report.left_out += [name for name in weights if name not in fitting]
        # Weights of another model fit nowhere.
        kept = fitting or expected.keys() | weights.keys()
        expected, weights = ({name: x for name, x in state.items() if name in kept} for state in (expected, weights))
    if mismatch := describe_mismatch(expected, weights):
        name = name or type(model).__name__
        command = check_command(loaded.source if os.path.isfile(loaded.source) else "FILE")
        what = f"{name} and its options: {mismatch}"
        raise ValueError(f"The weights in {loaded.source} must fit {what}; see `{command}`.")
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
    model: nn.Module, weights: dict[str, Tensor], state: dict[str, Tensor], report: LoadReport, head: Head, other: bool
) -> None:
    """Remove, in place, a head that is not loaded from the weights and from the parameters that need one.

    other: whether its classes have other names.
    """
    for name in parameter_names(model, "classifier", ".weight", ".bias"):
        fits = name in state and name in weights and weights[name].shape == state[name].shape and not other
        if (fits and head == "fit") or (name in weights and not weights[name].ndim):
            continue
        value, expected = weights.pop(name, None), state.pop(name, None)
        report.left_out += [name] if value is not None else []
        report.new += [name] if expected is not None else []
        if expected is not None and name.endswith(".weight"):
            which = "is missing and" if value is None else f"for {len(value)} classes{' of other names' * other}"
            report.changes.append(f"The head {which} is replaced by a new one for {len(expected)} classes.")


def is_own_model(name: str) -> bool:
    """Return whether a timm name, with or without a tag, is that of a model of this package."""
    name = name.partition(".")[0]
    return is_model(name) and model_entrypoint(name).__module__.startswith("soft_vit.")


def require_classifier(weights: NotedWeights) -> None:
    """Raise ValueError for weights of a detector or a segmentor."""
    if any(name.startswith(DENSE_PARTS) for name in weights):
        found = "a detector or segmentor; give its own --config"
        raise ValueError(f"{weights.source} must hold a classifier, got {found}.")


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


def _assumed_size(weights: Mapping[str, Tensor], model: Any, source: str) -> Size | None:
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


def position_counts(model: Any, img_size: Size) -> dict[str, int]:
    """Return the number of positions, with prefix tokens, of each position embedding of a model for an image size."""
    if hasattr(model, "position_counts"):
        return model.position_counts(img_size)
    if getattr(model, "pos_embed", None) is None:
        return {}
    height, width = _vit_grid(model, img_size)
    prefix = 0 if getattr(model, "no_embed_class", False) else model.num_prefix_tokens
    return {"pos_embed": prefix + height * width}


def resample_vit(model: Any, prefix: str, weights: MutableMapping[str, Tensor], img_size: Size | None = None) -> None:
    """Resample, in place, a ViT's position embedding, and weights of its attentions that belong to one map.

    prefix: of the model's names in weights. img_size: that the weights are for, by default a square one.
    """
    name, embedding = f"{prefix}pos_embed", getattr(model, "pos_embed", None)
    grid = _vit_grid(model, img_size) if img_size else None
    value = weights.get(name)
    if embedding is not None and value is not None:
        prefix_tokens = 0 if getattr(model, "no_embed_class", False) else model.num_prefix_tokens
        old = grid_of_positions(value, embedding, grid, prefix_tokens)
        if old is not None and old != tuple(model.patch_embed.grid_size):
            weights[name] = resample_abs_pos_embed(value, model.patch_embed.grid_size, old, prefix_tokens)
    for module_name, module in model.named_modules():
        if module is not model and hasattr(module, "resample_state"):
            module.resample_state(f"{prefix}{module_name}.", weights, grid)


def _vit_grid(model: Any, img_size: Size) -> Size:
    patch = model.patch_embed.patch_size
    return img_size[0] // patch[0], img_size[1] // patch[1]


def checkpoint_filter_fn(state_dict: Mapping[str, Tensor], model: Any) -> dict[str, Tensor]:
    """Return weights under the names of a model of this package, resampled to its image size.

    Released and converted weights are taken; converted ones of that size are returned unchanged.
    """
    if not isinstance(state_dict, NotedWeights):
        # timm sets these from the config.json of a model that it saved.
        state_dict = NotedWeights(state_dict, ModelSpec(None, getattr(model, "pretrained_model_args", {})))
    return rename_and_resample(state_dict, model)


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
