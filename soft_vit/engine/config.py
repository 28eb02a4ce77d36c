"""Resolve a config: a file, options, and values that several entries share.

`resolve` reads from top to bottom: the file, the options, shared values, flags of the command line, this machine,
checks. MMEngine saves its result, which is exactly what runs, in the work directory.

| value at the top of a config | sets |
|---|---|
| `data_root` | data sets without a folder of their own |
| `image_size` | the model, generated data sets, transforms that crop or resize, and windows of a sliding test |
| `num_classes` | the model and the data preprocessor; None counts the classes of the training data |
| `val_fraction` | the share of each class in `train/` that is held out, instead of `val/`; for every `ImageTree` |

An entry that the file does not set takes the shared value. An option also changes entries with the file's value.

Arguments of `RecipeDataPreprocessor` and `TimmEvalCrop` that a config does not set, such as mean and crop_pct, come
from the notes of the weights that a run starts from or tests, and otherwise from ImageNet's usual preprocessing.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import timm
from mmengine.config import Config
from mmengine.registry import HOOKS, LOOPS, MODELS, DefaultScope, Registry
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings
from timm.data import DEFAULT_CROP_PCT, IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import to_2tuple

import soft_vit  # noqa: F401  registers its models with timm
from soft_vit.engine.machine import fit_loaders, fit_processes, scale_learning_rate, start_processes
from soft_vit.engine.models.finetune import TIMM_PREFIX, start_spec
from soft_vit.engine.resume.read import require_checkpoint
from soft_vit.engine.resume.restart import choose_checkpoint, restarting_launcher
from soft_vit.registry import DATASETS
from soft_vit.text_tables import one_line
from soft_vit.weights.files import RESOURCES
from soft_vit.weights.load import is_own_model
from soft_vit.weights.spec import ModelSpec

_SHARED = ("data_root", "image_size", "num_classes", "val_fraction")
# The argument for the image size of each type that has one.
_SIZED = {
    "AlbumentationsTransform": "img_size",
    "ShapesDataset": "size",
    "TimmAugment": "img_size",
    "TimmEvalCrop": "img_size",
}
# The same for types that take another size, or none, where a config does not set it.
_SIZED_IF_SET = {
    "SegmentationPreprocessor": "size",
    "SegRandomCrop": "crop_size",
    "SegRandomResize": "scale",
    "SegResize": "scale",
}
# Arguments that these types take from the record of weights: its entry, the value without a record, and a factor.
_PIXELS = {
    "mean": ("mean", IMAGENET_DEFAULT_MEAN, 255),
    "std": ("std", IMAGENET_DEFAULT_STD, 255),
}
_SHARES = {"image_mean": ("mean", IMAGENET_DEFAULT_MEAN, 1), "image_std": ("std", IMAGENET_DEFAULT_STD, 1)}
_NOTED: dict[str, dict[str, tuple[str, Any, float | None]]] = {
    "RecipeDataPreprocessor": _PIXELS,
    "SegmentationPreprocessor": _PIXELS,
    "TorchvisionMaskRCNN": _SHARES,
    "TorchvisionRetinaNet": _SHARES,
    "TimmEvalCrop": {
        "crop_pct": ("crop_pct", DEFAULT_CROP_PCT, None),
        "crop_mode": ("crop_mode", "center", None),
        "interpolation": ("interpolation", "bicubic", None),
    },
}
# Keys that MMEngine reads from a config.
_READ_BY_RUNNER = inspect.signature(Runner.__init__).parameters.keys() | {
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
# Hooks of default_runtime.py that saved configs of earlier versions lack.
_ADDED_HOOKS = {
    "weights": {"type": "WeightsHook"},
    "stop": {"type": "StopHook"},
    "throughput": {"type": "ThroughputHook"},
}
# Counts of steps, epochs or images, by name.
_COUNTS = {"accumulative_counts", "batch_size", "feature_redraw_interval", "interval", "max_epochs", "max_iters"}
_COUNTS |= {"val_interval"}
# Modules that saved configs of earlier versions import, and the modules that replace them.
_MOVED = {"soft_vit.analysis.attention.report_hook": "soft_vit.engine"}
# Default hooks that MMEngine itself leaves out if they are None.
_HOOKS_OF_MMENGINE = ("runtime_info", "timer", "sampler_seed", "logger", "param_scheduler", "checkpoint")


def resolve(
    config: str | Path,
    options: Mapping[str, Any] | None = None,
    *,
    work_dir: str | Path | None = None,
    tested: ModelSpec | None = None,
    resume: str | None = None,
    amp: bool = False,
    auto_scale_lr: bool = False,
    validate: bool = True,
    launcher: str = "none",
    say: Callable[[str], None] = print,
) -> Config:
    """Return the config that runs, from a file, options, shared values, flags and this machine.

    config: see `find_config`; MMEngine's pure Python style is supported. options: values by dotted name, as in
    `--cfg-options`. tested: record of a checkpoint that is tested; `load_from` is ignored then. say: receives a
    sentence about each value that neither the file nor an option has set. Flags are those of
    `soft_vit.engine.run.train`.

    Raises FileNotFoundError for a missing file, and ValueError for an option that does not fit or is not read, and
    for values that contradict each other.
    """
    options = dict(options or {})
    cfg = read_config(find_config(config))
    before = {name: cfg.get(name) for name in _SHARED}
    _set_options(cfg, options)

    _share_data_root(cfg, before["data_root"])
    _hold_out(cfg)
    if cfg.get("num_classes", 0) is None and _timm_model(cfg).get("num_classes") in (None, before["num_classes"]):
        noted = tested and (tested.options.get("num_classes") or len(tested.label_names))
        cfg.num_classes = noted or _count_classes(cfg)
    _share_num_classes(cfg, before["num_classes"], options)
    _share_image_size(cfg, before["image_size"], options)

    cfg.work_dir = str(work_dir or cfg.get("work_dir") or Path("work_dirs") / Path(config).stem)
    _choose_loop(cfg)
    _complete_hooks(cfg)
    if amp:
        _use_amp(cfg)
    if not validate:
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    fit_processes(cfg, launcher)
    if tested is None:
        _choose_checkpoint(cfg, resume, say)
    else:
        cfg.load_from, cfg.resume = None, False
    start = start_weights(cfg) if tested is None else None
    if start and not cfg.get("load_from") and "://" not in start and not Path(start).is_file():
        # The backbone's file may be missing where a config is only read.
        start = None
    spec = start_spec(start) if start else tested or ModelSpec()
    if not _timm_model(cfg).get("pretrained"):
        _take_options(cfg, spec, fitted=bool(start and not cfg.get("resume")))
    _take_preprocessing(cfg, spec, start, say)
    check_task(cfg)

    fit_loaders(cfg)
    if auto_scale_lr or (cfg.get("auto_scale_lr") or {}).get("enable"):
        scale_learning_rate(cfg, say)

    _check_options(cfg, options)
    _check_entries(cfg)
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
        raise FileNotFoundError(f"config must be an existing .py file, such as those in configs/, got {path}.")
    return path


def read_config(path: Path) -> Config:
    """Return the config of a file, in which moved classes have their current names."""
    config = Config.fromfile(str(path), import_custom_modules=False)
    if getattr(config, "_imported_names", None):
        # The pure Python style holds classes; only names can be saved.
        config = Config(config.to_dict(), cfg_text=config.text, filename=config.filename)
    elif config.get("custom_imports"):
        names = config.custom_imports.imports
        names = [names] if isinstance(names, str) else names
        config.custom_imports.imports = [_MOVED.get(name, name) for name in names]
        import_modules_from_strings(**config.custom_imports)
    for _, entry in entries(config):
        if isinstance(entry.get("type"), str) and entry["type"].startswith("soft_vit."):
            # Modules have moved, registered names have not.
            entry["type"] = type_name(entry)
    return config


def _set_options(cfg: Config, options: Mapping[str, Any]) -> None:
    try:
        cfg.merge_from_dict(dict(options))
    except (KeyError, TypeError, IndexError, AssertionError) as error:
        raise ValueError(f"The options {dict(options)} do not fit the config ({one_line(error)}).") from error


def _check_options(cfg: Config, options: Mapping[str, Any]) -> None:
    for option in options:
        key = option.partition(".")[0]
        if key not in _READ_BY_RUNNER and not (key in _SHARED and _reaches(cfg, key)):
            raise ValueError(f"An option must change the run, got {option}, which is not read.")


def _check_entries(cfg: Config) -> None:
    """Raise ValueError for a count, or an argument of a hook or a loop, that would end the run after its first step."""
    for place, entry in entries(cfg):
        for key in _COUNTS & entry.keys():
            value, lowest = entry[key], -1 if key == "interval" else 1
            if value is not None and not (type(value) is int and value >= lowest and value != 0):
                raise ValueError(f"{place}.{key} must be a positive int, got {value!r}.".lstrip("."))
    hooks = [*(cfg.get("default_hooks") or {}).items(), *enumerate(cfg.get("custom_hooks") or ())]
    parts = [(f"hook {name}", hook, HOOKS) for name, hook in hooks] + [("train_cfg", cfg.get("train_cfg"), LOOPS)]
    for place, entry, registry in parts:
        cls = class_of(entry, registry) if isinstance(entry, dict) else None
        names, complete = _arguments(cls) if cls else (set(), False)
        unknown = sorted(entry.keys() - names - {"type", "priority"}) if complete else []
        if unknown:
            raise ValueError(f"{place} must have arguments of {cls.__name__}, got {unknown[0]}.")


def _reaches(cfg: Config, name: str) -> bool:
    """Return whether an entry takes a shared value."""
    if name in ("data_root", "val_fraction"):
        return any(dataset.get(name) == cfg[name] for dataset in _datasets_of(cfg))
    others = any(True for _ in _sized(cfg)) if name == "image_size" else _takes_num_classes(cfg)
    return bool(_timm_model(cfg)) or others


# Walking a config.


def type_name(entry: Mapping[str, Any]) -> str:
    """Return the name of an entry's class, without a registry's scope or a module's path."""
    return str(entry.get("type", "")).rpartition(".")[2]


def class_of(entry: Mapping[str, Any], registry: Registry) -> type | None:
    """Return the class of an entry from a registry of MMEngine or of an OpenMMLab library, or None if it has none."""
    kind, scopes = entry.get("type", ""), ("", "mmpretrain.", "mmdet.", "mmseg.")
    return next((found for scope in scopes if (found := registry.get(scope + kind))), None)


def entries(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the mapping of every entry of a config."""
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
    """Return the entry of a timm model, or {} for another model."""
    model = cfg.get("model") or {}
    return model if "model_name" in model else {}


def datasets_in(config: Any) -> Iterator[dict[str, Any]]:
    """Yield the entry of a data set, and those of data sets that it wraps."""
    if isinstance(config, dict):
        yield config
        for inner in (config.get("dataset"), *config.get("datasets", ())):
            yield from datasets_in(inner)


def _datasets_of(cfg: Config) -> Iterator[dict[str, Any]]:
    for split in ("train", "val", "test"):
        yield from datasets_in((cfg.get(f"{split}_dataloader") or {}).get("dataset"))


def _sized(cfg: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the dotted name, the entry and the argument of each size of an image."""
    for name, entry in entries(cfg, place):
        kind = type_name(entry)
        argument = _SIZED.get(kind) or _SIZED_IF_SET.get(kind)
        if argument and (kind in _SIZED or entry.get(argument) is not None):
            yield name, entry, argument
        if kind == "TimmSegmentor" and "crop_size" in (entry.get("test_cfg") or {}):
            yield f"{name}.test_cfg", entry["test_cfg"], "crop_size"


# Shared values.


def _share_data_root(cfg: Config, old: Any) -> None:
    if cfg.get("data_root") is None:
        return
    cfg.data_root = str(cfg.data_root)
    for dataset in _datasets_of(cfg):
        if _takes_data_root(dataset) and dataset.get("data_root") in (None, old):
            dataset["data_root"] = cfg.data_root
    is_moved = old not in (None, cfg.data_root)
    read = {key: value for key, value in cfg.items() if is_moved and key in _READ_BY_RUNNER}
    for place, entry in entries(read):
        for key, value in entry.items():
            if isinstance(value, str) and f"{value}/".startswith(f"{old.rstrip('/')}/"):
                name = f"{place}.{key}".lstrip(".")
                raise ValueError(f"{name} must follow data_root={cfg.data_root}, got {value}; set it as well.")


def _hold_out(cfg: Config) -> None:
    """Split the training images of each `ImageTree` in two, where `val_fraction` asks for it."""
    for split in ("train", "val", "test") if cfg.get("val_fraction") else ():
        for dataset in datasets_in((cfg.get(f"{split}_dataloader") or {}).get("dataset")):
            if type_name(dataset) == "ImageTree" and dataset.get("split", "train") in ("train", "val"):
                dataset.update(split="train", val_fraction=cfg.val_fraction, held_out=split != "train")


def _takes_data_root(dataset: Mapping[str, Any]) -> bool:
    return "data_root" in dataset or "data_root" in _arguments(class_of(dataset, DATASETS) or object)[0]


def _arguments(cls: type) -> tuple[set[str], bool]:
    """Return the arguments of a class and of bases that get its `**kwargs`, and whether these are all."""
    names: set[str] = set()
    for base in inspect.getmro(cls):
        parameters = inspect.signature(base.__init__).parameters
        names |= parameters.keys()
        if all(one.kind is not one.VAR_KEYWORD for one in parameters.values()):
            return names, True
    return names, False


def _count_classes(cfg: Config) -> int | None:
    """Return the number of classes that the training data names, or None as long as its folder is not given."""
    dataset = copy.deepcopy((cfg.get("train_dataloader") or {}).get("dataset"))
    parts = list(datasets_in(dataset))
    if not parts or any(_takes_data_root(one) and not one.get("data_root") for one in parts):
        return None
    for one in parts:
        one.pop("pipeline", None)
    with DefaultScope.overwrite_default_scope(cfg.get("default_scope") or "mmengine"):
        classes = getattr(DATASETS.build(dataset), "metainfo", {}).get("classes")
    if not classes:
        raise ValueError(f"num_classes must be set for a {type_name(dataset)}, which does not name its classes.")
    return len(classes)


def _share_num_classes(cfg: Config, old: Any, options: Mapping[str, Any]) -> None:
    value = _agree(cfg, "num_classes", "num_classes", old, options)
    model = _timm_model(cfg)
    if _takes_num_classes(cfg) and {"num_classes", "model.num_classes"} & options.keys() == {"num_classes"}:
        cfg.model.num_classes = value
    for entry in (model, cfg.get("data_preprocessor"), model.get("data_preprocessor")):
        if model and value is not None and entry is not None and entry.get("num_classes") in (None, old):
            entry["num_classes"] = value


def _takes_num_classes(cfg: Config) -> bool:
    """Return whether the model is a detector or segmentor with `num_classes`, which a file may set there alone."""
    return not _timm_model(cfg) and (cfg.get("model") or {}).get("num_classes") is not None


def _share_image_size(cfg: Config, old: Any, options: Mapping[str, Any]) -> None:
    value = _agree(cfg, "image_size", "img_size", old, options)
    if value is None:
        return
    if not all(isinstance(side, int) and side > 0 for side in to_2tuple(value)):
        raise ValueError(f"image_size must be a positive int or (height, width), got {value}.")
    model = _timm_model(cfg)
    if model and _takes_img_size(model["model_name"]):
        model["img_size"] = value
    for _, entry, argument in _sized(cfg):
        if entry.get(argument) in (None, old):
            entry[argument] = value
    for split in ("train", "val") if model else ():
        for place, entry, argument in _sized(cfg.get(f"{split}_dataloader"), f"{split}_dataloader"):
            if tuple(to_2tuple(entry[argument])) != tuple(to_2tuple(value)):
                raise ValueError(f"{place}.{argument} must be image_size={value}, got {entry[argument]}.")


def _agree(cfg: Config, name: str, argument: str, old: Any, options: Mapping[str, Any]) -> Any:
    """Return a shared value, or the model's if only the model has one. Raises ValueError if they differ."""
    value, own = cfg.get(name), _timm_model(cfg).get(argument)
    if own is not None and (value is None or (f"model.{argument}" in options and name not in options)):
        value = own
        if name in cfg:
            cfg[name] = own
    elif own not in (None, old, value):
        raise ValueError(f"model.{argument} must equal {name}={value}, got {own}; set only {name}.")
    return value


def _takes_img_size(name: str) -> bool:
    if is_own_model(name):
        return True
    found = timm.get_pretrained_cfg(name, allow_unregistered=True) if timm.is_model(name) else None
    return bool(found and found.fixed_input_size)


# How a run is built.


def _choose_loop(cfg: Config) -> None:
    """Let MMEngine's `train_cfg.by_epoch` choose between the loops that resume exactly, unless `type` names another."""
    loop = cfg.get("train_cfg") or {}
    by_epoch = loop.pop("by_epoch", None)
    if by_epoch is not None and loop.get("type") in (None, "ExactEpochLoop", "ExactIterLoop"):
        loop["type"] = "ExactEpochLoop" if by_epoch else "ExactIterLoop"
        loop.pop("max_iters" if by_epoch else "max_epochs", None)
    lengths = {"ExactEpochLoop": "max_epochs", "ExactIterLoop": "max_iters"}
    if (length := lengths.get(type_name(loop))) and (other := {"max_epochs", "max_iters"} & loop.keys() - {length}):
        raise ValueError(f"train_cfg.{other.pop()} must be train_cfg.{length} for {type_name(loop)}.")


def _complete_hooks(cfg: Config) -> None:
    hooks = cfg.get("default_hooks") or {}
    if "checks" in hooks and "weights" not in hooks:
        # Saved by 0.2.0, in which this was the default.
        for _, entry in entries(cfg):
            if type_name(entry) == "LabelMapTree":
                entry.setdefault("reduce_zero_label", True)
    kept = {name: hook for name, hook in hooks.items() if hook is not None or name in _HOOKS_OF_MMENGINE}
    cfg.default_hooks = {**{name: hook for name, hook in _ADDED_HOOKS.items() if name not in hooks}, **kept}


def _use_amp(cfg: Config) -> None:
    """Use autocast on any device, in bfloat16 unless the config sets float16."""
    wrapper = cfg.optim_wrapper
    kind = type_name(wrapper) or "OptimWrapper"
    if kind not in ("OptimWrapper", "AmpOptimWrapper", "SafeOptimWrapper"):
        raise ValueError(f"optim_wrapper.type must be SafeOptimWrapper for --amp, got {kind}.")
    wrapper.type = "SafeOptimWrapper"
    if wrapper.get("dtype") != "float16":
        wrapper.pop("loss_scale", None)
        wrapper.dtype = "bfloat16"


def _choose_checkpoint(cfg: Config, resume: str | None, say: Callable[[str], None]) -> None:
    """Set `load_from` and `resume`, from "auto", for the newest checkpoint in the work directory, or from a path."""
    if resume is None and cfg.get("resume") and not cfg.get("load_from"):
        # As in MMEngine.
        resume = "auto"
    if resume == "auto" or restarting_launcher():
        start_processes(cfg)
        asked, resume = resume, choose_checkpoint(cfg.work_dir, resume)
        if resume is None and asked == "auto":
            # Jobs that restart themselves pass --resume the first time, too.
            say(f"Training starts from the beginning, because {cfg.work_dir} is without a checkpoint.")
            cfg.resume = False
    if resume is not None:
        cfg.load_from, cfg.resume = resume, True
    if cfg.get("load_from"):
        require_checkpoint(cfg.load_from)


def start_weights(cfg: Config) -> str | None:
    """Return the weights that a run begins with, as `load_from` names them: of the model, or of its backbone."""
    for entry in (_timm_model(cfg), (cfg.get("model") or {}).get("backbone") or {}):
        start = entry.get("init_cfg") or {}
        file = entry.get("checkpoint_path") or (isinstance(start, Mapping) and start.get("checkpoint"))
        if own := file or (entry.get("pretrained") is True and TIMM_PREFIX + entry.get("model_name", "")):
            return cfg.get("load_from") or own
    return cfg.get("load_from")


def _take_options(cfg: Config, spec: ModelSpec, fitted: bool) -> None:
    """Set options of the model that its weights note and the config does not.

    fitted: the weights are fitted to the model's classes, channels and image size. A backbone reads its own file.
    """
    model, backbone = _timm_model(cfg), (cfg.get("model") or {}).get("backbone")
    left_out = ("num_classes", "in_chans", "img_size") if fitted else ()
    if model and model["model_name"].partition(".")[0] == spec.model:
        for name, value in spec.arguments({}).items():
            if name not in left_out:
                model.setdefault(name, value)
    for name, value in (spec.options.get("backbone") or {}).items() if backbone else ():
        backbone.setdefault(name, value)


def _take_preprocessing(cfg: Config, spec: ModelSpec, start: str | None, say: Callable[[str], None]) -> None:
    """Set the arguments in _NOTED that the config does not set, and say where it sets another colour range."""
    taken, others = {}, {}
    for place, entry in entries(cfg):
        for argument, (key, default, factor) in _NOTED.get(type_name(entry), {}).items():
            value = spec.cfg.get(key) or default
            value = [round(factor * one, 5) for one in value] if factor else value
            if entry.get(argument) is None:
                taken[key] = entry[argument] = value
            elif factor and key in spec.cfg and not np.allclose(entry[argument], value, atol=0.05 * factor):
                others[f"{place}.{argument}"] = (entry[argument], value)
    if start and taken:
        shown = ", ".join(f"{key}={value}" for key, value in taken.items())
        say(f"Images are prepared as {start} notes, or else as for ImageNet: {shown}.")
    for place, (own, noted) in others.items():
        say(f"{place} is {list(own)}, the weights {start or 'that are tested'} note {noted}.")


def check_task(cfg: Config) -> None:
    """Raise ValueError if the parts of a classifier's config differ in whether images have several labels."""
    model = _timm_model(cfg)
    if not model:
        return
    several, wrong = bool(model.get("multi_label")), []
    for split in ("train", "val", "test"):
        for one in datasets_in((cfg.get(f"{split}_dataloader") or {}).get("dataset")):
            kind = class_of(one, DATASETS) or object
            of_one_label = kind.__module__.startswith("soft_vit.") and not {"dataset", "datasets"} & one.keys()
            if (of_one_label or "multi_label" in one) and bool(one.get("multi_label")) != several:
                wrong.append(f"multi_label={several} in {split}_dataloader.dataset")
        evaluators = cfg.get(f"{split}_evaluator") or []
        for one in [evaluators] if isinstance(evaluators, Mapping) else evaluators:
            if several and type_name(one) in ("Accuracy", "ClassificationMetric"):
                wrong.append(f"another {split}_evaluator than {type_name(one)}, such as AveragePrecision")
    loss = model.get("loss") or {"use_sigmoid": several}
    if several and not (loss.get("use_sigmoid") or type_name(loss) in ("AsymmetricLoss", "FocalLoss")):
        wrong.append(f"a loss with use_sigmoid=True, got {type_name(loss)}")
    prepared = model.get("data_preprocessor") or cfg.get("data_preprocessor") or {}
    wrong += [f"{name}=0" for name in ("mixup", "cutmix", "smoothing") if several and prepared.get(name)]
    if wrong:
        raise ValueError(f"model.multi_label={several} needs {'; '.join(dict.fromkeys(wrong))}.")


# Reading a config without a run.


def timm_model_of(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the timm name and the arguments of the model that a config trains.

    Raises what `resolve` raises, and ValueError for a config of another model.
    """
    arguments = dict(resolve(path, tested=ModelSpec()).get("model") or {})
    if "model_name" not in arguments:
        raise ValueError(f"The config {path} must have a model with a model_name.")
    bases = inspect.getmro(class_of(arguments, MODELS))
    of_classifier = {key for base in bases for key in inspect.signature(base.__init__).parameters}
    left_out = {*of_classifier, "model_name", "pretrained", "type"}
    return arguments["model_name"], {key: value for key, value in arguments.items() if key not in left_out}
