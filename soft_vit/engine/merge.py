"""Merge a config: its file, options, values that entries share, and what a run needs. Nothing else is read."""

import ast
import inspect
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mmengine.config import Config
from mmengine.registry import HOOKS, LOOPS
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings

from soft_vit.engine import shared
from soft_vit.engine.entries import arguments_of, class_of, entries, type_name
from soft_vit.text_tables import one_line
from soft_vit.weights.files import RESOURCES

# Keys that MMEngine reads from a config.
_READ_BY_RUNNER = {*inspect.signature(Runner.__init__).parameters, "activation_checkpointing", "compile"}
_READ_BY_RUNNER |= {"custom_imports", "efficient_conv_bn_eval", "find_unused_parameters", "model_wrapper_cfg"}
_READ_BY_RUNNER |= {"sync_bn", "tta_model", "tta_pipeline"}
# Hooks that every run has.
_HOOKS = {"weights": {"type": "WeightsHook"}, "stop": {"type": "StopHook"}, "throughput": {"type": "ThroughputHook"}}
# Default hooks that MMEngine itself leaves out if they are None.
_HOOKS_OF_MMENGINE = ("runtime_info", "timer", "sampler_seed", "logger", "param_scheduler", "checkpoint")
# Keys of `paramwise_cfg` that MMEngine's constructor of optimizers reads; it ignores others.
_PARAMWISE = {"bias_decay_mult", "bias_lr_mult", "bypass_duplicate", "custom_keys", "dcn_offset_lr_mult"}
_PARAMWISE |= {"dwconv_decay_mult", "flat_decay_mult", "norm_decay_mult"}
# Counts of steps, epochs or images, by name.
_COUNTS = {"accumulative_counts", "batch_size", "feature_redraw_interval", "interval", "max_epochs", "max_iters"}
_COUNTS |= {"val_interval"}


def merge(
    config: str | Path, options: Mapping[str, Any], *, amp: bool = False, validate: bool = True
) -> tuple[Config, shared.Earlier]:
    """Return the config of a file with its options and flags, and the values that they replace.

    Arguments and errors are those of `soft_vit.engine.config.resolve`.
    """
    path = find_config(config)
    cfg, (values, replaced) = read_config(path), _history(path)
    replaced |= options.keys() & {*shared.NAMES}
    earlier = shared.Earlier(values, replaced, options.keys())
    _set_options(cfg, options)
    shared.share(cfg, earlier)
    _check_paths(cfg, earlier)

    _choose_loop(cfg)
    _complete_hooks(cfg)
    if amp:
        _use_amp(cfg)
    if not validate:
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    _check_entries(cfg)
    return cfg, earlier


# The file and its options.


def find_config(path: str | Path) -> Path:
    """Return the path of a config file; `configs/...` is also looked up in this package.

    Raises FileNotFoundError when the file is missing.
    """
    path = Path(path)
    if not path.is_file() and path.parts[:1] == ("configs",):
        path = RESOURCES / path
    if not path.is_file():
        raise FileNotFoundError(f"config must be an existing .py file, such as those in configs/, got {path}.")
    return path


def _find_base(base: str, path: str) -> tuple[str, str | None]:
    """Return the path of a file that a config is based on, and its scope, as MMEngine does.

    `configs/...` is also looked up in this package, so that a config may lie anywhere.
    """
    found, scope = _FIND_BASE(base, path)
    return found if scope or Path(found).is_file() else str(find_config(base)), scope


_FIND_BASE = Config._get_cfg_path


def _load_config(path: Path) -> Config:
    with patch.object(Config, "_get_cfg_path", staticmethod(_find_base)):
        return Config.fromfile(str(path), import_custom_modules=False)


def read_config(path: Path) -> Config:
    """Return the config of a file, and import the modules that it names."""
    config = _load_config(path)
    if getattr(config, "_imported_names", None):
        # The pure Python style holds classes; only names can be saved.
        config = Config(config.to_dict(), cfg_text=config.text, filename=config.filename)
    if config.get("custom_imports"):
        import_modules_from_strings(**config.custom_imports)
    for _, entry in entries(config):
        if isinstance(entry.get("type"), str) and entry["type"].startswith("soft_vit."):
            # Modules move, registered names do not.
            entry["type"] = type_name(entry)
    return config


def _history(path: Path) -> tuple[dict[str, list[Any]], set[str]]:
    """Return the values of each shared name in a file and in those that it is based on, the last one first.

    The second result are the names that one of these files sets to another value than those that it is based on.
    """
    values: dict[str, list[Any]] = {name: [] for name in shared.NAMES}
    replaced, bases = set(), _bases(path)
    for of_base, replaced_in_base in map(_history, bases):
        replaced |= replaced_in_base
        for name, some in of_base.items():
            values[name] += some
    for name, value in _values_set_in(path).items():
        if bases and values[name][:1] != [value]:
            replaced.add(name)
        values[name].insert(0, value)
    return values, replaced


def _values_set_in(path: Path) -> dict[str, Any]:
    """Return the shared values that a file itself sets."""
    text = path.read_text()
    assigned = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
    targets = {getattr(target, "id", None): node.value for node in assigned for target in node.targets}
    literals = {name: targets[name] for name in shared.NAMES if name in targets}
    with suppress(ValueError):
        # MMEngine, which also replaces variables of the environment, reads a file in a hundred times as long.
        if "{{" not in text:
            return {name: ast.literal_eval(value) for name, value in literals.items()}
    cfg = _load_config(path)
    return {name: cfg[name] for name in literals}


def _bases(path: Path) -> list[Path]:
    """Return the files that a config is based on, in either of MMEngine's styles."""
    bases = [Path(_find_base(base, str(path))[0]) for base in Config._get_base_files(str(path))]
    for block in ast.parse(path.read_text()).body:
        # `with read_base():`, in which one dot is the folder of the file. Packages of configs have no shared values.
        for node in block.body if isinstance(block, ast.With) else ():
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = path.parent.joinpath(*[".."] * (node.level - 1))
                bases.append(folder.joinpath(*str(node.module).split(".")).with_suffix(".py"))
    return bases


def _set_options(cfg: Config, options: Mapping[str, Any]) -> None:
    for option in options:
        key = option.partition(".")[0]
        if key not in _READ_BY_RUNNER and key not in shared.NAMES:
            raise ValueError(f"An option must be a key that the run reads, got {option}.")
    try:
        cfg.merge_from_dict(dict(options))
    except (KeyError, TypeError, IndexError, AssertionError) as error:
        raise ValueError(f"Options must fit the config, got {dict(options)} ({one_line(error)}).") from error


def _check_paths(cfg: Config, earlier: shared.Earlier) -> None:
    """Raise ValueError for a path that is still in an earlier `data_root`."""
    root = cfg.get("data_root")
    for old in {old for old in earlier.values["data_root"] if root is not None and old not in (None, root)}:
        for place, entry in entries({key: value for key, value in cfg.items() if key in _READ_BY_RUNNER}):
            for key, value in entry.items():
                if isinstance(value, str) and _is_in(value, old) and not _is_in(value, root):
                    name = f"{place}.{key}".lstrip(".")
                    raise ValueError(f"{name} must be in data_root={root}, got {value}; set it as well.")


def _is_in(path: str, folder: str) -> bool:
    # By text: in ".", every word would be a path.
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


# How a run is built.


def _choose_loop(cfg: Config) -> None:
    """Let MMEngine's `train_cfg.by_epoch` choose between the loops that resume exactly, unless `type` names another."""
    loop = cfg.get("train_cfg") or {}
    by_epoch = loop.pop("by_epoch", None)
    if by_epoch is not None and loop.get("type") in (None, "ExactEpochLoop", "ExactIterLoop"):
        loop["type"] = "ExactEpochLoop" if by_epoch else "ExactIterLoop"
        loop.pop("max_iters" if by_epoch else "max_epochs", None)
    if type_name(loop) == "ExactIterLoop":
        # Logs count as the run does. MMEngine's epoch would be 0 in each validation.
        cfg.log_processor = {"by_epoch": False, **(cfg.get("log_processor") or {})}
        hooks = cfg.get("default_hooks") or {}
        (hooks.get("logger") or {}).setdefault("log_metric_by_epoch", False)
        # One epoch lasts for the whole run: nothing would be saved before its end.
        if (saving := hooks.get("checkpoint")) and "by_epoch" not in saving:
            every = loop.get("val_interval", 1000) if saving.get("interval") == 1 else saving.get("interval", -1)
            saving.update(by_epoch=False, interval=every)


def _complete_hooks(cfg: Config) -> None:
    """Add the hooks that every run has, once, and leave out those that are None."""
    hooks = {**_HOOKS, **(cfg.get("default_hooks") or {})}
    custom = {type_name(hook) for hook in cfg.get("custom_hooks") or ()}
    twice = {name for name, hook in _HOOKS.items() if hook["type"] in custom}
    kept = {name for name, hook in hooks.items() if hook is not None or name in _HOOKS_OF_MMENGINE}
    cfg.default_hooks = {name: hook for name, hook in hooks.items() if name in kept - twice}


def _use_amp(cfg: Config) -> None:
    """Use autocast on any device, in bfloat16 unless the config sets float16."""
    wrapper = cfg.optim_wrapper
    kind = type_name(wrapper) or "OptimWrapper"
    if kind not in ("OptimWrapper", "AmpOptimWrapper", "SafeOptimWrapper"):
        raise ValueError(f"optim_wrapper.type must be SafeOptimWrapper for --amp, got {kind}.")
    wrapper.type = "SafeOptimWrapper"
    wrapper.pop("loss_scale", None)
    if wrapper.get("dtype") != "float16":
        wrapper.dtype = "bfloat16"


def _check_entries(cfg: Config) -> None:
    """Raise ValueError for a count, or an argument of a hook or a loop, that would end the run after its first step."""
    for place, entry in entries(cfg):
        for key in _COUNTS & entry.keys():
            value, lowest = entry[key], -1 if key == "interval" else 1
            if value is not None and not (type(value) is int and value >= lowest and value != 0):
                raise ValueError(f"{place}.{key} must be a positive int, got {value!r}.".lstrip("."))
    wrapper = cfg.get("optim_wrapper") or {}
    if unread := not wrapper.get("constructor") and (wrapper.get("paramwise_cfg") or {}).keys() - _PARAMWISE:
        raise ValueError(f"optim_wrapper.constructor must be one that takes {', '.join(sorted(unread))}, got None.")
    hooks = [*(cfg.get("default_hooks") or {}).items(), *enumerate(cfg.get("custom_hooks") or ())]
    parts = [(f"hook {name}", hook, HOOKS) for name, hook in hooks] + [("train_cfg", cfg.get("train_cfg"), LOOPS)]
    for place, entry, registry in parts:
        cls = class_of(entry, registry) if isinstance(entry, dict) else None
        names, complete = arguments_of(cls) if cls else (set(), False)
        if complete and (unknown := sorted(entry.keys() - names - {"type", "priority"})):
            raise ValueError(f"{place} must have arguments of {cls.__name__}, got {unknown[0]}.")
