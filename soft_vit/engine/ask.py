"""Ask weights and data for what a config leaves open. The main process reads them, and all processes get its answers.

Options of a model, and arguments such as mean and crop_pct, that a config does not set come from the record of the
weights that a run starts from or tests, and otherwise from ImageNet's usual preprocessing. Sizes of a tested detector,
and options of the backbone of a detector or segmentor, come from its record also where a config sets others, if no
option does.
"""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.registry import DefaultScope
from timm.data import DEFAULT_CROP_PCT, IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from soft_vit.engine.data.bad_images import ReadingDataset
from soft_vit.engine.entries import as_list, class_of, datasets_in, datasets_of, entries, timm_model, type_name
from soft_vit.engine.machine import start_processes
from soft_vit.engine.models.finetune import TIMM_PREFIX, start_spec
from soft_vit.engine.resume.restart import choose_checkpoint, restarting_launcher
from soft_vit.engine.shared import Earlier, counts_classes, share_num_classes, takes_data_root
from soft_vit.registry import DATASETS
from soft_vit.resume.ranks import from_main
from soft_vit.weights.spec import OF_DETECTORS, ModelSpec, plain

# Arguments that these types take from the record of weights: its entry, the value without a record, and a factor.
_PIXELS = {"mean": ("mean", IMAGENET_DEFAULT_MEAN, 255), "std": ("std", IMAGENET_DEFAULT_STD, 255)}
_SHARES = {"image_mean": ("mean", IMAGENET_DEFAULT_MEAN, 1), "image_std": ("std", IMAGENET_DEFAULT_STD, 1)}
_RECORDED: dict[str, dict[str, tuple[str, Any, float | None]]] = {
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


def ask(
    cfg: Config, earlier: Earlier, *, resume: str | None, tested: ModelSpec | None, notify: Callable[[str], None]
) -> None:
    """Complete a merged config from weights and data, in place.

    Arguments and errors are those of `soft_vit.engine.config.resolve`.
    """
    if counts_classes(cfg, earlier):
        recorded = tested and (tested.options.get("num_classes") or len(tested.label_names))
        cfg.num_classes = recorded or _main_process(cfg, _count_classes, cfg)
        share_num_classes(cfg, earlier)
    model = cfg.get("model") or {}
    open_bags = type_name(model) == "BagClassifier" and None in (model.get("in_features"), model.get("num_classes"))
    if open_bags and (known := _main_process(cfg, _training_metainfo, cfg)):
        model.update(in_features=known["in_features"], num_classes=len(known["classes"]))
    if tested is None:
        _choose_checkpoint(cfg, resume, notify)
        start = start_weights(cfg)
        spec = _main_process(cfg, _read_spec, start, bool(cfg.get("load_from"))) if start else None
    else:
        cfg.load_from, cfg.resume = None, False
        start, spec = None, tested
        backbone, of_backbone = model.get("backbone"), spec.options.get("backbone") or {}
        of_model = {name: spec.options[name] for name in OF_DETECTORS if name in spec.options}
        parts = {"model": (model, of_model), "model.backbone": (backbone, of_backbone)} if backbone else {}
        for part, (entry, recorded) in parts.items():
            for name, value in recorded.items():
                given, place = entry.setdefault(name, value), f"{part}.{name}"
                if place not in earlier.options and json.dumps(plain(given)) != json.dumps(value):
                    notify(f"{place} is {value}, as the tested file records, instead of {given}.")
                    entry[name] = value
    start, spec = start if spec else None, spec or ModelSpec()
    if not timm_model(cfg).get("pretrained"):
        _take_options(cfg, spec, fitted=bool(start and not cfg.get("resume")))
    _take_preprocessing(cfg, spec, start, notify)


def _main_process(cfg: Config, function: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a function in the main process, in all processes of the run."""
    start_processes(cfg)
    return from_main(function, *args)


def _count_classes(cfg: Config) -> int | None:
    """Return the number of classes that the training data names, or None as long as its folder is not given."""
    known = _training_metainfo(cfg)
    if known is None or known.get("classes"):
        return known and len(known["classes"])
    raise ValueError(f"num_classes must be set for a {type_name(cfg.train_dataloader.dataset)} without class names.")


def _training_metainfo(cfg: Config) -> Mapping[str, Any] | None:
    """Return the metainfo of the training data, or None as long as its folder is not given."""
    dataset = copy.deepcopy((cfg.get("train_dataloader") or {}).get("dataset"))
    parts = list(datasets_in(dataset))
    if not parts or any(takes_data_root(one) and not one.get("data_root") for one in parts):
        return None
    for one in parts:
        one.pop("pipeline", None)
        if issubclass(class_of(one, DATASETS) or object, ReadingDataset):
            # Its names are known before its list of images is made.
            one["lazy_init"] = True
    with DefaultScope.overwrite_default_scope(cfg.get("default_scope") or "mmengine"):
        return getattr(DATASETS.build(dataset), "metainfo", {})


def _choose_checkpoint(cfg: Config, resume: str | None, notify: Callable[[str], None]) -> None:
    """Set `load_from` and `resume`, from "auto", for the newest checkpoint in the work directory, or from a path."""
    if resume is None and cfg.get("resume") and not cfg.get("load_from"):
        # As in MMEngine.
        resume = "auto"
    if resume == "auto" or restarting_launcher():
        start_processes(cfg)
        asked, resume = resume, choose_checkpoint(cfg.work_dir, resume)
        if resume is None and asked == "auto":
            # Jobs that restart themselves pass --resume the first time, too.
            notify(f"Training starts from the beginning: {cfg.work_dir} has no checkpoint.")
            cfg.resume = False
    if resume is not None:
        cfg.load_from, cfg.resume = resume, True


def start_weights(cfg: Config) -> str | None:
    """Return the weights that a run begins with, as `load_from` names them: of the model, or of its backbone."""
    for entry in (timm_model(cfg), (cfg.get("model") or {}).get("backbone") or {}):
        init = entry.get("init_cfg") or {}
        file = entry.get("checkpoint_path") or (isinstance(init, Mapping) and init.get("checkpoint"))
        if weights := file or (entry.get("pretrained") is True and TIMM_PREFIX + entry.get("model_name", "")):
            return cfg.get("load_from") or weights
    return cfg.get("load_from")


def _read_spec(start: str, required: bool) -> ModelSpec | None:
    """Return the record of weights; None for a missing file that is not required, as where a config is only read."""
    is_missing = "://" not in start and not Path(start).expanduser().is_file()
    return None if is_missing and not required else start_spec(start)


def _take_options(cfg: Config, spec: ModelSpec, fitted: bool) -> None:
    """Set options of the model that the record of its weights has and the config does not.

    fitted: the weights are fitted to the model's classes, channels and image size. A backbone reads its own file.
    """
    model, backbone = timm_model(cfg), (cfg.get("model") or {}).get("backbone")
    left_out = ("num_classes", "in_chans", "img_size") if fitted else ()
    if model and model["model_name"].partition(".")[0] == str(spec.model).partition(".")[0]:
        for name, value in spec.arguments({}).items():
            if name not in left_out:
                model.setdefault(name, value)
    for name, value in (spec.options.get("backbone") or {}).items() if backbone else ():
        backbone.setdefault(name, value)


def _take_preprocessing(cfg: Config, spec: ModelSpec, start: str | None, notify: Callable[[str], None]) -> None:
    """Set the arguments in _RECORDED that the config leaves open, and notify of other values of mean and std."""
    taken = {}
    for place, entry in entries(cfg):
        for argument, (key, default, factor) in _RECORDED.get(type_name(entry), {}).items():
            value = spec.cfg.get(key) or default
            value = [round(factor * one, 5) for one in value] if factor else value
            if entry.get(argument) is None:
                taken[key] = entry[argument] = value
            elif factor and key in spec.cfg and not np.allclose(entry[argument], value, atol=0.05 * factor):
                records = f"{start or 'the tested file'} records {value}"
                notify(f"{place}.{argument} is {list(entry[argument])}; {records}.")
    if start and taken:
        shown = ", ".join(f"{key}={value}" for key, value in taken.items())
        notify(f"Images are prepared as for {start}, or as for ImageNet where it records nothing: {shown}.")


def check_task(cfg: Config) -> None:
    """Raise ValueError if the parts of a classifier's config differ in whether images have several labels."""
    if not (model := timm_model(cfg)):
        return
    several, wrong = bool(model.get("multi_label")), []
    for split in ("train", "val", "test"):
        for one in datasets_of(cfg, split):
            kind = class_of(one, DATASETS) or object
            of_one_label = kind.__module__.startswith("soft_vit.") and not {"dataset", "datasets"} & one.keys()
            if (of_one_label or "multi_label" in one) and bool(one.get("multi_label")) != several:
                wrong.append(f"multi_label={several} in {split}_dataloader.dataset")
        for one in as_list(cfg.get(f"{split}_evaluator")):
            if several and type_name(one) in ("Accuracy", "ClassificationMetric"):
                wrong.append(f"another {split}_evaluator than {type_name(one)}, such as AveragePrecision")
    loss = model.get("loss") or {"use_sigmoid": several}
    if several and not (loss.get("use_sigmoid") or type_name(loss) in ("AsymmetricLoss", "FocalLoss")):
        wrong.append(f"a loss with use_sigmoid=True, got {type_name(loss)}")
    prepared = model.get("data_preprocessor") or cfg.get("data_preprocessor") or {}
    if several and type_name(model) in ("DistillClassifier", "MesaClassifier"):
        # Their losses compare distributions over classes.
        wrong.append("model.type=TimmTrainClassifier")
    wrong += [f"{name}=0" for name in ("mixup", "cutmix", "smoothing") if several and prepared.get(name)]
    if wrong:
        raise ValueError(f"model.multi_label={several} needs {'; '.join(dict.fromkeys(wrong))}.")
