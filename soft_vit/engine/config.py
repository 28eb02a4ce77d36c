"""What a run is: a config file, its options, and the values that many entries share.

`resolve` goes from top to bottom: the file, the options, shared values, flags of the command line, this machine,
checks. What it returns is exactly what runs, and MMEngine saves it in the work directory.

| value at the top of a config | reaches |
|---|---|
| `data_root` | data sets without a folder of their own |
| `image_size` | the model, generated data sets, and transforms that crop or resize |
| `num_classes` | the model and the data preprocessor; None counts the classes of the training images |

An entry that the file leaves open takes the shared value. An option replaces it in entries that have the file's value.
"""

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import timm
from mmengine.config import Config
from mmengine.registry import MODELS
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings

import soft_vit  # noqa: F401  registers its models with timm
from soft_vit.data.images import find_images
from soft_vit.engine.errors import one_line
from soft_vit.engine.machine import fit_loaders, fit_processes, scale_learning_rate
from soft_vit.engine.resume.read import find_newest_checkpoint, require_checkpoint
from soft_vit.registry import DATASETS
from soft_vit.weights.files import RESOURCES

__all__ = ["entries", "find_config", "resolve", "timm_model_of", "type_name"]

_SHARED = ("data_root", "image_size", "num_classes")
_SPLITS = ("train", "val", "test")
# The argument for the image size of each type that has one.
_SIZED = {
    "AlbumentationsTransform": "img_size",
    "ShapesDataset": "size",
    "TimmAugment": "img_size",
    "TimmEvalCrop": "img_size",
}
# What Runner reads from the config without an argument of its own.
_READ_BY_RUNNER = {
    "activation_checkpointing",
    "compile",
    "custom_imports",
    "efficient_conv_bn_eval",
    "find_unused_parameters",
    "model_wrapper_cfg",
    "sync_bn",
    "tta_model",
    "tta_pipeline",
}
# Hooks of default_runtime.py that configs of earlier versions lack.
_ADDED_HOOKS = {
    "weights": {"type": "WeightsHook"},
    "stop": {"type": "StopHook"},
    "throughput": {"type": "ThroughputHook"},
}
# Modules that saved configs of earlier versions import, and where their classes are now.
_MOVED = {"soft_vit.analysis.attention.report_hook": "soft_vit.engine"}
# Default hooks for which MMEngine itself understands None.
_HOOKS_OF_MMENGINE = ("runtime_info", "timer", "sampler_seed", "logger", "param_scheduler", "checkpoint")


def resolve(
    config: str | Path,
    options: Mapping[str, Any] | None = None,
    *,
    work_dir: str | Path | None = None,
    num_classes: int | None = None,
    resume: str | None = None,
    amp: bool = False,
    auto_scale_lr: bool = False,
    validate: bool = True,
    launcher: str = "none",
) -> Config:
    """Read a config file and return what runs: with its options, shared values and flags, on this machine.

    config: see `find_config`; MMEngine's pure Python style is read as well. options: values by dotted name, as of
    `--cfg-options`. num_classes: of a checkpoint, for a config that leaves them open. Flags are those of
    `soft_vit.engine.run.train`.

    Raises FileNotFoundError for a missing file, and ValueError for a file that cannot be read, an option that does not
    fit or changes nothing, and values that contradict each other.
    """
    options = dict(options or {})
    cfg = read_config(find_config(config))
    before = {name: cfg.get(name) for name in _SHARED}
    _set_options(cfg, options)

    _share_data_root(cfg, before["data_root"])
    if cfg.get("num_classes", 0) is None and not _timm_model(cfg).get("num_classes"):
        cfg.num_classes = num_classes or _count_classes(cfg)
    _share_num_classes(cfg, before["num_classes"], options)
    _share_image_size(cfg, before["image_size"], options)

    cfg.work_dir = str(work_dir or cfg.get("work_dir") or Path("work_dirs") / Path(config).stem)
    _choose_loop(cfg)
    _drop_late_schedules(cfg)
    _complete_hooks(cfg)
    if amp:
        _use_amp(cfg)
    if not validate:
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    _choose_checkpoint(cfg, resume)

    fit_loaders(cfg)
    fit_processes(cfg, launcher)
    if auto_scale_lr or (cfg.get("auto_scale_lr") or {}).get("enable"):
        scale_learning_rate(cfg)

    _check_options(cfg, options)
    _check_channel_order(cfg)
    return cfg


# The file and its options.


def find_config(path: str | Path) -> Path:
    """Return the path of a config file; `configs/...` is also looked up in this package.

    Raises FileNotFoundError when the file is missing.
    """
    path = Path(path)
    if not path.is_file() and path.parts[:1] == ("configs",):
        path = RESOURCES / path
    if not path.is_file():
        raise FileNotFoundError(f"There is no config {path}; give the path of a .py file such as those in configs/.")
    return path


def read_config(path: Path) -> Config:
    """Return a config as its file says. Raises ValueError for a file that is not Python."""
    try:
        config = Config.fromfile(str(path), import_custom_modules=False)
    except (SyntaxError, UnicodeError) as error:
        raise ValueError(f"The config {path} cannot be read ({one_line(error)}).") from error
    if getattr(config, "_imported_names", None):
        # The pure Python style holds classes; names can be saved.
        config = Config(config.to_dict(), cfg_text=config.text, filename=config.filename)
    elif config.get("custom_imports"):
        names = config.custom_imports.imports
        names = [names] if isinstance(names, str) else names
        config.custom_imports.imports = [_MOVED.get(name, name) for name in names]
        import_modules_from_strings(**config.custom_imports)
    for _, entry in entries(config):
        if isinstance(entry.get("type"), str) and entry["type"].startswith("soft_vit."):
            # Modules move, registered names stay.
            entry["type"] = type_name(entry)
    return config


def _set_options(cfg: Config, options: Mapping[str, Any]) -> None:
    try:
        cfg.merge_from_dict(dict(options))
    except (KeyError, TypeError, IndexError, AssertionError) as error:
        raise ValueError(f"The options {dict(options)} do not fit the config ({one_line(error)}).") from error


def _check_options(cfg: Config, options: Mapping[str, Any]) -> None:
    read = _READ_BY_RUNNER | inspect.signature(Runner.__init__).parameters.keys()
    for option in options:
        key = option.partition(".")[0]
        if key not in read and not (key in _SHARED and _reaches(cfg, key)):
            raise ValueError(f"The option {option} must name a value that a run reads; this one changes nothing.")


def _check_channel_order(cfg: Config) -> None:
    """Refuse BGR images for a preprocessor whose means are RGB."""
    preprocessors = (cfg.get("data_preprocessor"), (cfg.get("model") or {}).get("data_preprocessor"))
    if all(type_name(entry or {}) != "RecipeDataPreprocessor" for entry in preprocessors):
        return
    for split, loader in _loaders(cfg):
        for place, entry in entries(loader, f"{split}_dataloader"):
            if type_name(entry) == "LoadImageFromFile":
                raise ValueError(
                    f"{place} loads BGR images, and RecipeDataPreprocessor takes RGB; use the data set ImageTree, or "
                    "data_preprocessor=dict(type='ClsDataPreprocessor', to_rgb=True, ...)."
                )


def _reaches(cfg: Config, name: str) -> bool:
    """Whether an entry received a shared value."""
    if name == "data_root":
        return any(dataset.get("data_root") == cfg.data_root for dataset in _datasets_of(cfg))
    return bool(_timm_model(cfg)) or (name == "image_size" and any(True for _ in _sized(cfg)))


# Walking a config.


def type_name(entry: Mapping[str, Any]) -> str:
    """Return the class that an entry names, without the scope of a registry or the path of a module."""
    return str(entry.get("type", "")).rpartition(".")[2]


def entries(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every mapping in a config with its dotted name."""
    if isinstance(value, Mapping | Config):
        yield place, value
        inside = list(value.items())
    elif isinstance(value, list | tuple):
        inside = list(enumerate(value))
    else:
        return
    for key, inner in inside:
        yield from entries(inner, f"{place}.{key}" if place else str(key))


def _timm_model(cfg: Config) -> dict[str, Any]:
    """The entry of a timm model; an empty one for any other model."""
    model = cfg.get("model") or {}
    return model if "model_name" in model else {}


def _loaders(cfg: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    for split in _SPLITS:
        if cfg.get(f"{split}_dataloader"):
            yield split, cfg[f"{split}_dataloader"]


def _datasets(config: Any) -> Iterator[dict[str, Any]]:
    """The entry of a data set, and those inside it."""
    if isinstance(config, dict):
        yield config
        for inner in (config.get("dataset"), *config.get("datasets", ())):
            yield from _datasets(inner)


def _datasets_of(cfg: Config) -> Iterator[dict[str, Any]]:
    for _, loader in _loaders(cfg):
        yield from _datasets(loader.get("dataset"))


def _sized(cfg: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
    """Dotted name and entry of each type of _SIZED, and the argument for its size."""
    for name, entry in entries(cfg, place):
        if argument := _SIZED.get(type_name(entry)):
            yield name, entry, argument


# Shared values.


def _share_data_root(cfg: Config, old: Any) -> None:
    if cfg.get("data_root") is None:
        return
    cfg.data_root = str(cfg.data_root)
    for dataset in _datasets_of(cfg):
        cls = DATASETS.get(dataset.get("type", ""))
        takes = "data_root" in dataset or (cls and "data_root" in inspect.signature(cls.__init__).parameters)
        if takes and dataset.get("data_root") in (None, old):
            dataset["data_root"] = cfg.data_root
    for place, entry in entries(cfg) if old not in (None, cfg.data_root) else ():
        for key, value in entry.items():
            if isinstance(value, str) and value.startswith(old):
                raise ValueError(
                    f"{place}.{key} must be set as well as data_root, which it was made from, got {value}."
                )


def _count_classes(cfg: Config) -> int | None:
    """Count the folders of the training images; None where none are named yet."""
    for dataset in _datasets((cfg.get("train_dataloader") or {}).get("dataset")):
        if type_name(dataset) == "ImageTree" and dataset.get("data_root"):
            given = {key: dataset[key] for key in ("label_file", "classes") if dataset.get(key)}
            return len(find_images(dataset["data_root"], dataset.get("split", "train"), **given).classes)
    return None


def _share_num_classes(cfg: Config, old: Any, options: Mapping[str, Any]) -> None:
    value = _agree(cfg, "num_classes", "num_classes", old, options)
    model = _timm_model(cfg)
    for entry in (model, cfg.get("data_preprocessor"), model.get("data_preprocessor")):
        if model and value is not None and entry is not None and entry.get("num_classes") in (None, old):
            entry["num_classes"] = value


def _share_image_size(cfg: Config, old: Any, options: Mapping[str, Any]) -> None:
    value = _agree(cfg, "image_size", "img_size", old, options)
    if value is None:
        return
    model = _timm_model(cfg)
    if model and _takes_img_size(model["model_name"]):
        model["img_size"] = value
    for _, entry, argument in _sized(cfg):
        if entry.get(argument) in (None, old):
            entry[argument] = value
    for split in ("train", "val") if model else ():
        for place, entry, argument in _sized(cfg.get(f"{split}_dataloader"), f"{split}_dataloader"):
            if _pair(entry[argument]) != _pair(value):
                raise ValueError(
                    f"{place}.{argument} must be the size of the model, {value}, got {entry[argument]}; set image_size "
                    "alone, which reaches both."
                )


def _agree(cfg: Config, name: str, argument: str, old: Any, options: Mapping[str, Any]) -> Any:
    """Return a shared value, or that of the model where it is the model's alone. Raises ValueError if they differ."""
    value, own = cfg.get(name), _timm_model(cfg).get(argument)
    if own is not None and (value is None or (f"model.{argument}" in options and name not in options)):
        value = own
        if name in cfg:
            cfg[name] = own
    elif own not in (None, old, value):
        raise ValueError(f"model.{argument} must be {name}, which is {value}, got {own}; set {name} alone.")
    return value


def _takes_img_size(name: str) -> bool:
    if not timm.is_model(name):
        return False
    if timm.models.model_entrypoint(name).__module__.startswith("soft_vit."):
        return True
    found = timm.get_pretrained_cfg(name, allow_unregistered=True)
    return bool(found and found.fixed_input_size)


def _pair(size: int | list | tuple) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size)


# How a run is built.


def _choose_loop(cfg: Config) -> None:
    """Let `train_cfg.by_epoch` choose between the loops that resume exactly, unless the config names another loop."""
    loop = cfg.get("train_cfg") or {}
    by_epoch = loop.pop("by_epoch", None)
    if by_epoch is not None and loop.get("type", "ExactEpochLoop") in ("ExactEpochLoop", "ExactIterLoop"):
        own = loop.get("type")
        loop["type"] = "ExactEpochLoop" if by_epoch else "ExactIterLoop"
        if own not in (None, loop["type"]):
            loop.pop("max_iters" if by_epoch else "max_epochs", None)


def _drop_late_schedules(cfg: Config) -> None:
    """Leave out schedules that would begin after a run was shortened; open ones last as long as the run in MMEngine."""
    run = cfg.get("train_cfg") or {}
    if isinstance(cfg.get("param_scheduler"), list):
        ends = (run.get("max_epochs" if one.get("by_epoch", True) else "max_iters") for one in cfg.param_scheduler)
        pairs = zip(cfg.param_scheduler, ends, strict=True)
        cfg.param_scheduler = [one for one, end in pairs if "end" in one or not end or one.get("begin", 0) < end]


def _complete_hooks(cfg: Config) -> None:
    hooks = cfg.get("default_hooks") or {}
    kept = {name: hook for name, hook in hooks.items() if hook is not None or name in _HOOKS_OF_MMENGINE}
    cfg.default_hooks = {**{name: hook for name, hook in _ADDED_HOOKS.items() if name not in hooks}, **kept}


def _use_amp(cfg: Config) -> None:
    """Switch to autocast on any device: in bfloat16, unless the config asks for float16."""
    wrapper = cfg.optim_wrapper
    kind = type_name(wrapper) or "OptimWrapper"
    if kind not in ("OptimWrapper", "AmpOptimWrapper", "SafeOptimWrapper"):
        raise ValueError(f"optim_wrapper.type must be SafeOptimWrapper with --amp, got {kind}.")
    wrapper.type = "SafeOptimWrapper"
    if wrapper.get("dtype") != "float16":
        wrapper.pop("loss_scale", None)
        wrapper.dtype = "bfloat16"


def _choose_checkpoint(cfg: Config, resume: str | None) -> None:
    """resume: "auto", for the newest checkpoint in the work directory, or a path."""
    if resume is None and cfg.get("resume") and not cfg.get("load_from"):
        # As MMEngine understands it.
        resume = "auto"
    if resume == "auto":
        newest = find_newest_checkpoint(cfg.work_dir)
        if newest is None:
            # A job that restarts itself passes --resume from the start.
            print(f"No checkpoint in {cfg.work_dir}: training starts from the beginning.")
        resume = newest and str(newest)
        cfg.resume = False
    if resume is not None:
        cfg.load_from, cfg.resume = resume, True
    if cfg.get("load_from"):
        require_checkpoint(cfg.load_from)


# Reading a config without a run.


def timm_model_of(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the timm name and the arguments of the model that a config trains.

    Raises what `resolve` raises, and ValueError for a config of another model.
    """
    arguments = dict(resolve(path).get("model") or {})
    if "model_name" not in arguments:
        raise ValueError(f"The config {path} must have a model with a model_name.")
    name, kind = arguments.pop("model_name"), arguments.pop("type")
    cls = MODELS.get(kind) or MODELS.get(f"mmpretrain.{kind}")
    of_classifier = {key for base in cls.__mro__ for key in inspect.signature(base.__init__).parameters}
    return name, {key: value for key, value in arguments.items() if key not in {*of_classifier, "pretrained"}}
