"""Testing a checkpoint or a timm model: what the command line calls."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch import Tensor

import soft_vit  # noqa: F401  its models have to be known to timm before one is looked up by name
from soft_vit.engine.config import apply_options
from soft_vit.engine.config_values import count_classes, take_trained_classes, type_name
from soft_vit.engine.data.eval_data import (
    View,
    class_names,
    set_folder,
    set_view,
    takes_pillow,
    timm_view,
    use_tta_model,
    use_tta_pipeline,
    view_of_config,
)
from soft_vit.engine.errors import one_line
from soft_vit.engine.hooks.checks import match_classes
from soft_vit.engine.hooks.throughput import ThroughputHook
from soft_vit.engine.models.finetune import TIMM_PREFIX
from soft_vit.engine.models.notes import model_options
from soft_vit.engine.models.tested_model import TestedModelHook
from soft_vit.engine.prepare import prepare
from soft_vit.engine.report import Report
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.engine.run import require_checkpoint, traceback_in_log
from soft_vit.models import PYRAMID_MODELS
from soft_vit.weights.read import notes_of, trained_notes, unwrap_state_dict

__all__ = ["Images", "Target", "evaluate"]

_ACCURACIES = ("Accuracy", "ClassificationMetric")
# What mmpretrain measures of classes of whole images.
_CLASSIFICATION_METRICS = (
    *_ACCURACIES,
    "AveragePrecision",
    "ConfusionMatrix",
    "MultiLabelMetric",
    "SingleLabelMetric",
    "VOCAveragePrecision",
    "VOCMultiLabelMetric",
)


@dataclass(frozen=True)
class Target:
    """What is tested.

    config: its test split, or at least its test pipeline and metrics. model: a checkpoint of the config's model, or the
    name of a timm model, which takes that one's place and brings its own way of resizing, cropping and normalising.
    weights: a file for a timm model; without one, pretrained decides between published and random weights. ema: the
    averaged (True) or the plain weights of a checkpoint with both; None for the averaged ones. options: entries of the
    config by dotted name.
    """

    config: str | Path
    model: str
    weights: str | None = None
    pretrained: bool = True
    ema: bool | None = None
    options: dict[str, Any] | None = None


@dataclass(frozen=True)
class Images:
    """Which images are shown, and how; by default as the config or the timm model says.

    data_root: a folder with a folder of images for each class, named like the model's classes or by their numbers;
    predictions are restricted to the classes found. classes: for data_root, a file that names the model's classes, see
    `class_names`.
    img_size: pixels a side. crop_pct: side of the crop by that of the resized image, in (0, 1]. tta: test time
    augmentation by the config's `tta_pipeline` and `tta_model`, or by the mean of the scores of each image and its
    mirror image.
    """

    data_root: str | Path | None = None
    classes: str | Path | None = None
    img_size: int | None = None
    crop_pct: float | None = None
    tta: bool = False

    def __post_init__(self) -> None:
        if self.img_size is not None and self.img_size < 1:
            raise ValueError(f"img_size is {self.img_size}; give the pixels a side, such as 224.")
        if self.classes is not None and self.data_root is None:
            raise ValueError(f"classes needs data_root, whose folders it names; got classes={self.classes} alone.")
        if self.crop_pct is not None and not 0 < self.crop_pct <= 1:
            raise ValueError(f"crop_pct is {self.crop_pct}; give a share above 0 and at most 1, such as 0.875.")


def evaluate(
    target: Target, images: Images | None = None, report: Report | None = None, *, launcher: str = "none"
) -> dict[str, float]:
    """Measure a model on the test split of a config, or on a folder of images.

    A config that measures anything but classes of whole images, such as boxes or label maps, is tested as it stands,
    on a checkpoint of its model; with tta it must set both entries for that.

    Returns `accuracy/top1` and `accuracy/top5` in percent, `cross_entropy`, `images`, what else the config measures in
    single numbers, and `images_per_second/loop` and `/forward`, see `ThroughputHook`. Raises ValueError
    or FileNotFoundError for what cannot be used.
    """
    images, report = images or Images(), report or Report()
    report.require_places()
    cfg = prepare(target.config, report.work_dir, target.options, launcher)
    if not cfg.get("test_dataloader"):
        raise ValueError(f"The config {cfg.filename} has no test_dataloader; give one that has test images.")
    classifies = _classifies(cfg)
    if not classifies:
        _require_config_alone(cfg, target, images, report)
    if images.tta:
        use_tta_pipeline(cfg, classifies)
    view, trained, recorded = _use_model(cfg, target, images)
    class_indices = None
    if images.data_root is not None:
        class_indices = set_folder(cfg, images.data_root, _class_names(cfg, trained, images.classes, recorded))
    if view is not None:
        set_view(cfg, view)
    if images.tta:
        use_tta_model(cfg)
    # MMEngine's EMAHook would swap the weights that are to be tested for others.
    cfg.custom_hooks = [hook for hook in cfg.get("custom_hooks") or [] if type_name(hook) != "EMAHook"]
    if classifies:
        cfg.test_evaluator = _evaluators(cfg, class_indices, report.counts)

    throughput = ThroughputHook()
    with traceback_in_log():
        runner = Runner.from_cfg(_under_another_name(cfg))
        published = str(cfg.load_from).startswith(TIMM_PREFIX)
        for hook in (TestedModelHook(target.ema, view and view.img_size, same_classes=published), throughput):
            runner.register_hook(hook)
        if classifies and images.data_root is None and trained:
            match_classes(runner.test_dataloader.dataset, trained, "the checkpoint")
        # Only single numbers: mmpretrain's ConfusionMatrix, for one, gives a table.
        metrics = {name: float(value) for name, value in runner.test().items() if torch.as_tensor(value).numel() == 1}
    metrics["images"] = len(runner.test_dataloader.dataset)
    # The rate of forward passes alone is NaN for models, such as detectors, that have no such pass.
    metrics.update({name: rate for name, rate in throughput.rates().items() if math.isfinite(rate)})
    if is_main_process():
        report.write(metrics, _asked(target, images, view))
        if report.counts:
            names, table = _confusion(runner, class_indices)
            report.write_counts(table, names)
    return metrics


def _asked(target: Target, images: Images, view: View | None) -> dict[str, Any]:
    """What a result's JSON repeats of the question."""
    asked = {name: getattr(target, name) for name in ("config", "model", "weights", "ema")}
    return asked | {
        "random": not target.pretrained or None,
        "data_root": images.data_root,
        "img_size": view and view.img_size,
        "crop_pct": view and view.crop_pct,
        "tta": images.tta or None,
    }


def _use_model(cfg: Config, target: Target, images: Images) -> tuple[View | None, Sequence[str], Sequence[str] | None]:
    """Set the model and its weights in a config.

    Returns the view of the images, None for the config's own, and two lists of names of classes: those of the training
    data in a local checkpoint, and those that the weights of a timm model record.
    """
    if is_timm_name(target.model):
        return _use_timm_model(cfg, target, images)
    trained = _use_checkpoint(cfg, target)
    img_size, crop_pct = images.img_size, images.crop_pct
    changed = (img_size, crop_pct) != (None, None) or (images.data_root is not None and not takes_pillow(cfg))
    return (view_of_config(cfg, img_size, crop_pct) if changed else None), trained, None


def _under_another_name(cfg: Config) -> Config:
    """The config as `<name>_test.py`: a copy goes into the work directory, where that of the training may lie."""
    path = Path(cfg.filename)
    return Config(cfg.to_dict(), cfg_text=cfg.text, filename=str(path.with_name(f"{path.stem}_test{path.suffix}")))


def _classifies(cfg: Config) -> bool:
    """Whether a config measures classes of whole images; one without a metric does."""
    own = _metrics_of(cfg)
    return not own or any(name in _CLASSIFICATION_METRICS for name, _ in own)


def _metrics_of(cfg: Config) -> list[tuple[str, dict[str, Any]]]:
    """What a config measures: the name of each metric and its entry."""
    own = cfg.get("test_evaluator") or []
    own = [own] if isinstance(own, dict) else own
    return [(type_name(entry), entry) for entry in own]


def _require_config_alone(cfg: Config, target: Target, images: Images, report: Report) -> None:
    """Refuse what only a classifier can be asked for. Raises ValueError."""
    asked = {name: getattr(images, name) for name in ("data_root", "classes", "img_size", "crop_pct")}
    asked |= {"per_class": report.per_class, "confusion": report.confusion, "weights": target.weights}
    names = ", ".join(f"--{name.replace('_', '-')}" for name, value in sorted(asked.items()) if value is not None)
    if names:
        raise ValueError(
            f"{cfg.filename} does not measure classes of whole images, which {names} need; set the data and the model "
            "with --cfg-options."
        )
    if is_timm_name(target.model):
        raise ValueError(
            f"{target.model} is a timm model, and {cfg.filename} does not measure classes of whole images; give a "
            "checkpoint of the config's model."
        )


def is_timm_name(model: str) -> bool:
    """Whether it names a timm model, with or without a tag; a file of that name comes first."""
    return not Path(model).is_file() and timm.is_model(model)


def _with_tag(name: str) -> str:
    """The full name of the weights that timm takes for a model: their head and size need not be the bare model's."""
    tag = _pretrained_cfg(name).get("tag")
    return name if "." in name or not tag else f"{name}.{tag}"


def _pretrained_cfg(name: str) -> dict[str, Any]:
    try:
        found = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise ValueError(f"{one_line(error)}; choose a name of timm.list_pretrained().") from error
    return {} if found is None else found.to_dict()


def _use_checkpoint(cfg: Config, target: Target) -> Sequence[str]:
    """Set a checkpoint of the config's model; returns the names of its classes."""
    path = target.model
    if "://" not in path and not Path(path).expanduser().is_file():
        raise FileNotFoundError(
            f"There is no checkpoint {path}, and timm has no model of that name; give the path of a file that exists, "
            "or a name of timm.list_models()."
        )
    if target.weights is not None or not target.pretrained:
        raise ValueError(f"{path} is a checkpoint with weights of its own; give the name of a timm model for others.")
    cfg.load_from, cfg.resume = path, False
    trained = notes_of(_content_of(path)).cfg.get("label_names", ())
    take_trained_classes(cfg, trained)
    count_classes(cfg)
    return trained


def _content_of(path: str) -> dict[str, Any]:
    """What a local file of weights holds; nothing for an address."""
    return {} if "://" in path else load_checkpoint_file(path)


def _use_timm_model(cfg: Config, target: Target, images: Images) -> tuple[View, Sequence[str], Sequence[str] | None]:
    """Set a timm model with its own view of images, see `_use_model`.

    A file knows the options of its model and what its images were like; the name only those of its published weights.
    """
    weights, pretrained = target.weights, target.pretrained and target.weights is None
    name = _with_tag(target.model) if pretrained else target.model
    is_pyramid = name.split(".")[0] in PYRAMID_MODELS
    timm_cfg = _pretrained_cfg(name)
    content, told = {}, {}
    own = cfg.get("model") or {}
    model = {"type": "TimmProgressClassifier", "model_name": name}
    if "data_preprocessor" in own:
        model["data_preprocessor"] = own["data_preprocessor"]
    if weights is not None:
        require_checkpoint(weights)
        content = _content_of(weights)
    if content:
        notes = trained_notes(content, weights)
        told = notes.cfg
        if "mean" not in told:
            print_log(f"Nothing in {weights} says how its images were prepared; the model's are assumed.", "current")
        if is_pyramid:
            # The size is that of the images.
            noted = {key: value for key, value in notes.options.items() if key != "img_size"}
            model |= model_options({"model": noted})
        head = unwrap_state_dict(content, weights).get(f"{timm_cfg.get('classifier')}.weight")
        if head is not None:
            model["num_classes"] = head.shape[0]
    if not pretrained and "num_classes" in own:
        # Published weights bring a head of their own size.
        model.setdefault("num_classes", own["num_classes"])
    cfg.model, cfg.resume = model, False
    cfg.load_from = TIMM_PREFIX + name if pretrained else weights
    apply_options(cfg, {key: value for key, value in (target.options or {}).items() if key.startswith("model.")})
    if is_pyramid and "input_size" in told:
        # Resampled to another size and back, position embeddings would not be the file's.
        cfg.model.setdefault("img_size", told["input_size"][1:])
    view = timm_view({**timm_cfg, **told}, images.img_size, images.crop_pct)
    recorded = {**(timm_cfg if pretrained else {}), **told}.get("label_names")
    return view, notes_of(content).cfg.get("label_names", ()), recorded


def _class_names(
    cfg: Config, trained: Sequence[str], listed: str | Path | None, recorded: Sequence[str] | None
) -> list[str]:
    num_classes = cfg.model.get("num_classes") or (cfg.model.get("head") or {}).get("num_classes")
    if num_classes is None and "model_name" in cfg.model:
        num_classes = _pretrained_cfg(cfg.model.model_name).get("num_classes")
    if num_classes is None:
        raise ValueError(
            f"The config {cfg.filename} does not say how many classes its model has; set model.num_classes."
        )
    return class_names(cfg, num_classes, trained, listed, recorded)


def _confusion(runner: Runner, class_indices: list[int] | None) -> tuple[list[Any], Tensor]:
    """Names of the classes, or numbers where they have none, and the counts, `[C, C]`."""
    table = runner.test_loop.evaluator.metrics[0].confusion_table
    known = getattr(runner.test_dataloader.dataset, "metainfo", {}).get("classes") or ()
    indices = range(len(table)) if class_indices is None else class_indices
    return [known[index] if index < len(known) else index for index in indices], table


def _evaluators(cfg: Config, class_indices: list[int] | None, counted: bool) -> list[dict[str, Any]]:
    """This package's metric in the place of other accuracies, then what else a config measures."""
    own = _metrics_of(cfg)
    topk = {1, 5}
    for asked in (entry.get("topk", ()) for name, entry in own if name in _ACCURACIES):
        topk |= {asked} if isinstance(asked, int) else set(asked)
    metric = {"type": "ClassificationMetric", "topk": sorted(topk), "class_indices": class_indices}
    return [{**metric, "confusion": counted}, *(entry for name, entry in own if name not in _ACCURACIES)]
