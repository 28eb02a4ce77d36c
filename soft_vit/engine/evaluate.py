"""Test a checkpoint or a timm model on the images of a config or of a folder."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.logging import print_log
from mmengine.registry import MODELS
from mmengine.runner import Runner
from mmpretrain.models import BaseClassifier

from soft_vit.engine.ask import check_task
from soft_vit.engine.config import resolve
from soft_vit.engine.data import views
from soft_vit.engine.entries import as_list, class_of, type_name
from soft_vit.engine.hooks.checks import match_classes
from soft_vit.engine.models.finetune import TIMM_PREFIX, start_spec
from soft_vit.engine.models.timm_model import classes_of, published_spec
from soft_vit.engine.run import build_runner, traceback_in_log
from soft_vit.text_tables import csv_table
from soft_vit.weights.build import complete_spec
from soft_vit.weights.files import ensure_writable, write_atomically
from soft_vit.weights.read import load_weights
from soft_vit.weights.spec import ModelSpec

_ACCURACIES = ("Accuracy", "ClassificationMetric")
_SOURCES = ("local-dir:", "hf-hub:")


def evaluate(
    config: str | Path,
    model: str,
    *,
    weights: str | None = None,
    pretrained: bool = True,
    ema: bool | None = None,
    options: Mapping[str, Any] | None = None,
    data_root: str | Path | None = None,
    img_size: int | tuple[int, int] | None = None,
    crop_pct: float | None = None,
    scale: float | None = None,
    tta: bool = False,
    out: str | Path | None = None,
    per_class: str | Path | None = None,
    confusion: str | Path | None = None,
    work_dir: str | Path | None = None,
    launcher: str = "none",
) -> dict[str, float]:
    """Measure a model on the test split of a config, or on a folder of images.

    What is tested: model is a checkpoint of the config's model, or the name of a timm model (also `local-dir:FOLDER` or
    `hf-hub:OWNER/NAME`), which brings its own way of resizing, cropping and normalising. weights: a file for a timm
    model; without one, pretrained decides between published and random weights. ema: the averaged (True) or the plain
    weights of a checkpoint with both; None for the averaged ones. options: entries of the config by dotted name.

    On which images: those of the config, whose classes are matched with the model's by name. data_root is a folder with
    a folder of images for each class, named like the model's classes or by their numbers; predictions are restricted to
    the classes found. img_size: side or (H, W). crop_pct: side of the crop divided by that of the resized image, in (0,
    1]. tta: test time augmentation by the config's `tta_pipeline` and `tta_model`, or by the mean of the scores of each
    image and its mirror image.

    What is written: out is a JSON file of the metrics. per_class: CSV of class, images, correct, accuracy. confusion:
    CSV with a row for each true class and a column for each predicted one. work_dir: for logs, by default
    work_dirs/<config name>.

    A model with several labels for each image (`multi_label`) is tested by the metrics of its config, on the config's
    images, whose folder options can change; per_class is a CSV of class and average precision in percent.

    A config of detection or segmentation is tested without changes, on a checkpoint of its model. tta then needs both
    entries in the config. scale: a segmentor sees images at this share of their own resolution, instead of the config's
    test size.

    Returns `accuracy/top1` and `accuracy/top5` in percent, `cross_entropy`, `images`, other scalar metrics of the
    config, and `images_per_second`, see `ThroughputHook`. Raises ValueError or FileNotFoundError
    for arguments that do not fit.
    """
    # 1. Read the model's file, before anything is built.
    if crop_pct is not None and not 0 < crop_pct <= 1:
        raise ValueError(f"crop_pct must be above 0 and at most 1, got {crop_pct}.")
    for path in {out, per_class, confusion} - {None}:
        ensure_writable(path)
    named = not Path(model).is_file() and (timm.is_model(model) or model.startswith(_SOURCES))
    spec = _read(model, weights, pretrained, named)

    # 2. Fit the config: pipeline, model, images, hooks, metrics.
    cfg = resolve(config, options, work_dir=work_dir, tested=spec, launcher=launcher)
    classifies = issubclass(class_of(cfg.model, MODELS) or BaseClassifier, BaseClassifier)
    if not classifies and any(map(bool, (named, data_root, img_size, crop_pct, per_class, confusion))):
        raise ValueError(f"The config {cfg.filename} must be one of image classification for these options.")
    view = None
    if named:
        _use_timm_model(cfg, model, weights, pretrained, spec, options or {})
        view = views.timm_view({**published_spec(model).cfg, **spec.entries({})}, img_size, crop_pct)
    else:
        cfg.load_from = model
        if (img_size, crop_pct) != (None, None) or (data_root is not None and not views.crop_of(cfg)):
            view = views.view_of_config(cfg, img_size, crop_pct)
    if scale is not None:
        views.set_scale(cfg, scale)
    check_task(cfg)
    if several := bool(cfg.model.get("multi_label")):
        if data_root is not None or confusion is not None:
            raise ValueError("data_root and confusion must be left out for a model with several labels for each image.")
        if per_class is not None:
            entry = {"type": "mmpretrain.AveragePrecision", "average": None}
            cfg.test_evaluator = [*as_list(cfg.get("test_evaluator")), entry]
    if tta:
        views.use_tta_pipeline(cfg, classifies)
    indices = None
    if data_root is not None:
        count = _num_classes(cfg)
        names = spec.class_names(count)
        names += map(str, range(len(names), count))
        indices = views.set_folder(cfg, data_root, names)
    if view is not None:
        views.set_view(cfg, view)
    if tta:
        views.use_tta_model(cfg)
    cfg.default_hooks["weights"] = {"type": "WeightsHook", "ema": ema, "img_size": view and view.img_size}
    # MMEngine's EMAHook would replace the weights that are to be tested.
    cfg.custom_hooks = [hook for hook in cfg.get("custom_hooks") or [] if type_name(hook) != "EMAHook"]
    if classifies and not several:
        cfg.test_evaluator = _evaluators(cfg, indices, counted=per_class is not None or confusion is not None)

    # 3. Run it.
    with traceback_in_log():
        # MMEngine copies the config to the work directory of the training.
        path = Path(cfg.filename).with_stem(f"{Path(cfg.filename).stem}_test")
        runner = build_runner(Config(cfg.to_dict(), cfg_text=cfg.text, filename=str(path)))
        if data_root is None:
            _match_classes(runner, spec)
        results = runner.test()
        # Some metrics of mmpretrain, such as ConfusionMatrix, are tables.
        metrics = {name: float(value) for name, value in results.items() if torch.as_tensor(value).ndim == 0}
    metrics["images"] = len(runner.test_dataloader.dataset)

    # 4. Write the files.
    if is_main_process():
        if out is not None:
            asked = dict(config=config, model=model, weights=weights, ema=ema, data_root=data_root, tta=tta or None)
            asked |= dict(img_size=view and view.img_size, crop_pct=view and view.crop_pct)
            asked |= dict(pretrained=pretrained if named else None, scale=scale)
            asked = {name: value for name, value in asked.items() if value is not None}
            # JSON lacks NaN.
            values = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
            text = json.dumps({**values, **asked}, indent=2, allow_nan=False, default=str)
            write_atomically(out, f"{text}\n".encode())
        if several and per_class is not None:
            values = ["" if math.isnan(ap) else f"{ap:.2f}" for ap in results["multi-label/AP_classwise"]]
            rows = zip(classes_of(runner.test_dataloader.dataset), values, strict=True)
            write_atomically(per_class, csv_table(["class", "average precision"], rows).encode())
        elif per_class is not None or confusion is not None:
            _write_counts(runner, indices, per_class, confusion)
    return metrics


def _read(model: str, weights: str | None, pretrained: bool, named: bool) -> ModelSpec:
    """Return the record of the weights that are tested, empty for random ones."""
    if not named:
        if "://" not in model and not Path(model).expanduser().is_file():
            raise FileNotFoundError(f"model must be a checkpoint or a name of timm.list_models(), got {model}.")
        if weights is not None or not pretrained:
            raise ValueError(f"weights must belong to the name of a timm model, got the checkpoint {model}.")
        return start_spec(model)
    if weights is not None:
        return start_spec(weights)
    return published_spec(model) if pretrained else ModelSpec()


def _use_timm_model(
    cfg: Config, name: str, weights: str | None, pretrained: bool, spec: ModelSpec, options: Mapping[str, Any]
) -> None:
    """Set a timm model with the options that its weights note."""
    replaced = cfg.get("model") or {}
    cfg.model = {"type": "TimmTrainClassifier", "model_name": name, "multi_label": spec.multi_label}
    if "data_preprocessor" in replaced:
        cfg.model["data_preprocessor"] = replaced["data_preprocessor"]
    if weights is not None:
        if "mean" not in spec.cfg:
            print_log(f"{weights} does not note its preprocessing; that of {name} is used.", "current")
        cfg.model.update(complete_spec(load_weights(weights), name).arguments({}))
    elif pretrained:
        cfg.model.update(spec.arguments({}))
    elif "num_classes" in replaced:
        # Published weights bring a head of their own size.
        cfg.model["num_classes"] = replaced["num_classes"]
    cfg.load_from = weights or (TIMM_PREFIX + name if pretrained else None)
    cfg.merge_from_dict({key: value for key, value in options.items() if key.startswith("model.")})


def _match_classes(runner: Runner, spec: ModelSpec) -> None:
    """Number the classes of the images as the model does.

    They may be numbered differently in COCO's files and in label maps, and some may be missing. Names that the weights
    do not record may be ImageNet's, if all classes of the images have those.
    """
    dataset, names = runner.test_dataloader.dataset, spec.class_names(_num_classes(runner.cfg))
    if names and (spec.label_names or set(classes_of(dataset)) <= set(names)):
        match_classes(dataset, names, "the model")
        runner.test_evaluator.dataset_meta = getattr(dataset, "metainfo", None)


def _num_classes(cfg: Config) -> int:
    # In tests with augmentation, the model is inside another.
    model = cfg.model.get("module") or cfg.model
    count = model.get("num_classes") or (model.get("head") or {}).get("num_classes")
    return count or (published_spec(model.model_name).options["num_classes"] if "model_name" in model else 0)


def _evaluators(cfg: Config, class_indices: list[int] | None, counted: bool) -> list[dict[str, Any]]:
    """Return this package's metric instead of other accuracies, and the other metrics of a config."""
    configured, topk = as_list(cfg.get("test_evaluator")), {1, 5}
    for asked in (entry.get("topk", ()) for entry in configured if type_name(entry) in _ACCURACIES):
        topk |= {asked} if isinstance(asked, int) else set(asked)
    metric = {"type": "ClassificationMetric", "topk": sorted(topk), "class_indices": class_indices}
    return [{**metric, "confusion": counted}, *(entry for entry in configured if type_name(entry) not in _ACCURACIES)]


def metrics_table(metrics: Mapping[str, float]) -> str:
    """Return a line for each metric: 2 decimals for percent and rates, 0 for counts, 4 for others."""

    def digits(name: str) -> int:
        return 0 if name == "images" else 2 if name.startswith(("accuracy/", "images_per_second")) else 4

    return "\n".join(f"{name}: {value:.{digits(name)}f}" for name, value in metrics.items())


def _write_counts(
    runner: Runner, indices: Sequence[int] | None, per_class: str | Path | None, confusion: str | Path | None
) -> None:
    table = runner.test_loop.evaluator.metrics[0].confusion_table
    known = classes_of(runner.test_dataloader.dataset)
    names = [known[i] if i < len(known) else i for i in (range(len(table)) if indices is None else indices)]
    if per_class is not None:
        counts = zip(names, table.sum(1).tolist(), table.diagonal().tolist(), strict=True)
        rows = [(name, count, hits, f"{100 * hits / count:.2f}" if count else "") for name, count, hits in counts]
        write_atomically(per_class, csv_table(["class", "images", "correct", "accuracy/top1"], rows).encode())
    if confusion is not None:
        rows = [(name, *counts) for name, counts in zip(names, table.tolist(), strict=True)]
        write_atomically(confusion, csv_table(["true \\ predicted", *names], rows).encode())
