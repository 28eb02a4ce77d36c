"""Read a config, and report early what is wrong with it."""

import difflib
import inspect
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import Registry
from mmengine.runner import Runner

from soft_vit.engine.config_values import entries, fill_values, reaches, type_name
from soft_vit.engine.errors import one_line
from soft_vit.weights.files import RESOURCES

__all__ = [
    "apply_options",
    "check_keys",
    "find_config",
    "load_config",
    "require_registered",
    "timm_model_of",
]

# Keys that Runner reads from its cfg, or MMEngine from the file, beside the arguments of Runner.
_OTHER_KEYS = {
    "activation_checkpointing",
    "compile",
    "custom_imports",
    "efficient_conv_bn_eval",
    "find_unused_parameters",
    "gpu_ids",
    "model_wrapper_cfg",
    "runner_type",
    "sync_bn",
    "tta_model",
    "tta_pipeline",
}
# Names that configs commonly give to values of their own.
_HELPERS = {
    "backend_args",
    "batch_size",
    "crop_size",
    "data_root",
    "dataset_type",
    "file_client_args",
    "image_size",
    "max_epochs",
    "metainfo",
    "norm_cfg",
    "num_classes",
    "window_size",
}
_HELPER_ENDINGS = ("_pipeline", "_dataset")
# Similarity from which a key counts as a misspelling; train_cfg and test_cfg have 0.71.
_ALIKE = 0.82
# Entries of which MMEngine ignores what it does not know.
_INSIDE = {
    "auto_scale_lr": {"base_batch_size", "enable"},
    "env_cfg": {"cudnn_benchmark", "dist_cfg", "mp_cfg", "resource_limit"},
    "optim_wrapper.paramwise_cfg": {
        "bias_decay_mult",
        "bias_lr_mult",
        "bypass_duplicate",
        "custom_keys",
        "dcn_offset_lr_mult",
        "dwconv_decay_mult",
        "flat_decay_mult",
        "norm_decay_mult",
    },
}


def known_keys() -> set[str]:
    """Top-level keys that MMEngine reads."""
    return (set(inspect.signature(Runner.__init__).parameters) - {"self", "cfg"}) | _OTHER_KEYS


def check_keys(config: Config) -> None:
    """Refuse a top-level key that looks like a misspelling; warn about one that MMEngine does not know.

    MMEngine itself ignores unknown keys. Raises ValueError.
    """
    known = known_keys()
    strange = []
    for key in config:
        if key in known or key in _HELPERS or key.endswith(_HELPER_ENDINGS) or key.startswith("_"):
            continue
        alike = difflib.get_close_matches(key, known, n=1, cutoff=_ALIKE)
        if alike:
            raise ValueError(f"The config sets {key!r}, which nothing reads; did you mean {alike[0]!r}?")
        strange.append(key)
    _check_inside(config)
    if strange:
        warnings.warn(
            f"The config sets {', '.join(strange)}, which MMEngine does not read; ignore this if the config uses "
            "them itself.",
            stacklevel=2,
        )


def _check_inside(config: Config) -> None:
    """Refuse unknown keys in the entries of _INSIDE. Raises ValueError."""
    constructor = _entry_at(config, "optim_wrapper").get("constructor", "")
    own = type_name({"type": constructor}) not in ("", "DefaultOptimWrapperConstructor")
    for place, known in _INSIDE.items():
        if place.startswith("optim_wrapper") and own:
            continue
        for key in _entry_at(config, place):
            if key not in known:
                alike = difflib.get_close_matches(key, known, n=1)
                advice = f"did you mean {alike[0]!r}?" if alike else f"choose of {', '.join(sorted(known))}."
                raise ValueError(f"{place} sets {key!r}, which nothing reads; {advice}")


def _check_options(config: Config, before: Mapping[str, Any], options: Iterable[str]) -> None:
    """Refuse an option that changes nothing but a variable of the config. Raises ValueError.

    before: the config's values without the options.
    """
    known = known_keys()
    for option in options:
        key, _, rest = option.partition(".")
        helper = key in _HELPERS or key.endswith(_HELPER_ENDINGS)
        if key in known or reaches(config, key) or (key in before and not helper):
            continue
        value = before.get(key)
        places = [
            f"{place}.{name}"
            for place, entry in entries(dict(before))
            for name, other in entry.items()
            if place and isinstance(value, list | dict) and other == value
        ]
        alike = difflib.get_close_matches(key, known, n=1, cutoff=_ALIKE)
        if places:
            advice = f"set {' and '.join('.'.join(filter(None, (place, rest))) for place in places)} instead."
        elif key in before:
            advice = "set the entries that are made from it."
        else:
            advice = f"did you mean {alike[0]!r}?" if alike else "leave it out."
        raise ValueError(f"The option {option} changes nothing that a run reads; {advice}")


def find_config(path: str | Path) -> Path:
    """The path of a config file. `configs/...` is looked up in this package if the current folder has no such file.

    Raises FileNotFoundError when the file is missing.
    """
    path = Path(path)
    if not path.is_file() and path.parts[:1] == ("configs",):
        path = RESOURCES / path
    if not path.is_file():
        raise FileNotFoundError(f"There is no config {path}; give the path of a .py file such as those in configs/.")
    return path


def load_config(path: str | Path, options: Mapping[str, Any] | None = None) -> Config:
    """Read a config file, import what it asks for, set options, and fill in its shared values.

    path: see `find_config`. MMEngine's pure Python style is read as well; names replace its classes. options: values
    by dotted name, as of `--cfg-options`. Shared values, such as `image_size`: see `soft_vit.engine.config_values`.

    Raises FileNotFoundError when the file is missing, ValueError when it cannot be read or an option does
    not fit.
    """
    path = find_config(path)
    try:
        config = Config.fromfile(str(path))
    except (SyntaxError, UnicodeError) as error:
        raise ValueError(f"The config {path} cannot be read ({one_line(error)}).") from error
    if getattr(config, "_imported_names", None):
        # Names in place of the imported classes.
        config = Config(config.to_dict(), cfg_text=config.text, filename=config.filename)
    before = dict(config.items())
    apply_options(config, options)
    fill_values(config, before, options or ())
    _check_options(config, before, options or ())
    return config


def _entry_at(config: Config, place: str) -> Mapping[str, Any]:
    """The mapping of a dotted name; an empty one where there is none."""
    entry: Any = config
    for key in place.split("."):
        entry = entry.get(key) if isinstance(entry, Mapping | Config) else None
    return entry if isinstance(entry, Mapping) else {}


def require_registered(config: Config, place: str, registry: Registry) -> None:
    """Refuse a `type` that its registry does not hold; MMEngine would go on with None.

    place: dotted name of the entry, which may be absent. Raises ValueError.
    """
    name = _entry_at(config, place).get("type")
    if not isinstance(name, str):
        return
    # Projects such as mmpretrain add to a child of the registry.
    child = registry.children.get(config.get("default_scope"), registry)
    if child.get(name) is not None:
        return
    names = {**registry.module_dict, **child.module_dict}
    alike = difflib.get_close_matches(name, names, n=1)
    advice = f"choose {alike[0]}" if alike else f"choose one of {', '.join(sorted(names))}"
    raise ValueError(
        f"{place}.type is {name!r}, which is not in the registry of {registry.name}s; {advice}, or import the module "
        "that registers it by custom_imports."
    )


def apply_options(config: Config, options: Mapping[str, Any] | None) -> None:
    """Set options in a config, in place. Raises ValueError when one does not fit the structure of the config."""
    try:
        config.merge_from_dict(dict(options or {}))
    except Exception as error:
        raise ValueError(
            f"The options {options} do not fit the config ({one_line(error)}); correct the option."
        ) from error


def timm_model_of(path: str | Path) -> tuple[str, dict]:
    """The timm name and the arguments of the model that a config trains.

    Raises what `load_config` raises, and ValueError for a config whose model is not one of timm.
    """
    arguments = dict(load_config(path).get("model", {}))
    name = arguments.pop("model_name", None)
    if name is None:
        raise ValueError(f"The config {path} names no timm model; give one whose model has a model_name.")
    ours = ("type", "pretrained", "data_preprocessor", "train_cfg", "loss", "init_cfg", "with_cp")
    ours += ("frozen_stages", "compile_model", "channels_last", "teacher", "distillation", "alpha", "tau")
    ours += ("phase1_epochs", "swap")
    return name, {key: value for key, value in arguments.items() if key not in ours}
