"""The record of a training in its checkpoints: the model, its options, its preprocessing, facts for a model card."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mmengine.config import Config
from mmengine.runner import Runner

from soft_vit.engine.data.views import view_of_config
from soft_vit.engine.models.timm_model import backbone_spec, classes_of, timm_network, unwrapped
from soft_vit.weights.spec import OF_DETECTORS, ModelSpec, plain


def spec_of_run(runner: Runner) -> ModelSpec | None:
    """Return the record that a run saves in its checkpoints; None for a model that has no timm model in it."""
    model = unwrapped(runner.model)
    network, backbone = timm_network(model), backbone_spec(model)
    if network is not None:
        spec = ModelSpec.of(network)
    elif backbone is not None:
        # Its config builds a detector or segmentor, apart from what its weights do not show.
        known = {key: value for key, value in runner.cfg.model.items() if key in OF_DETECTORS and value is not None}
        spec = ModelSpec(None, plain(known | {"backbone": backbone.arguments({})}))
    else:
        return None
    known = {key: value for key, value in spec.cfg.items() if not key.startswith("test_")}
    cfg = {**known, **cfg_of_config(runner.cfg), **normalisation_of(model)}
    if network is not None:
        cfg["input_size"] = (spec.cfg["input_size"][0], *cfg["input_size"][1:])
    spec = replace(spec, cfg=plain(cfg), training=training_facts(runner.cfg))
    return spec.with_classes(classes_of(runner.train_dataloader.dataset), bool(getattr(model, "multi_label", False)))


def training_facts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return facts of a training config for a model card, a word or two each."""
    train, loader = config.get("train_cfg") or {}, config.get("train_dataloader") or {}
    optimizer = (config.get("optim_wrapper") or {}).get("optimizer") or {}
    facts = {
        "labels of an image": "several" if (config.get("model") or {}).get("multi_label") else None,
        "epochs": train.get("max_epochs"),
        "iterations": train.get("max_iters"),
        "optimizer": optimizer.get("type"),
        "learning rate": optimizer.get("lr"),
        "weight decay": optimizer.get("weight_decay"),
        "batch size of a process": loader.get("batch_size"),
    }
    return {name: str(value) for name, value in facts.items() if value is not None}


def cfg_of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of timm's pretrained_cfg that a training config determines: size and crop."""
    entries: dict[str, Any] = {}
    size = (config.get("model") or {}).get("img_size")
    # Without test images, or with those of another task than classification.
    with contextlib.suppress(ValueError, AttributeError):
        view = view_of_config(Config(dict(config)))
        entries = {key: getattr(view, key) for key in ("crop_pct", "interpolation", "crop_mode")}
        size = size or view.img_size
    if size is not None:
        entries["input_size"] = (3, size, size) if isinstance(size, int) else (3, *size)
    return entries


def normalisation_of(model: Any) -> dict[str, tuple[float, ...]]:
    """Return mean and std, for values in [0, 1], by which a model of MMEngine normalises images; {} for others."""
    if (transform := getattr(getattr(model, "detector", None), "transform", None)) is not None:
        return {"mean": tuple(transform.image_mean), "std": tuple(transform.image_std)}
    prepared = getattr(model, "data_preprocessor", None)
    if getattr(prepared, "_enable_normalize", True) is False:
        # mmpretrain's preprocessors leave values from 0 to 255.
        return {"mean": (0.0,) * 3, "std": (1 / 255,) * 3}
    values = {key: getattr(prepared, key, None) for key in ("mean", "std")}
    return {key: tuple((x.flatten().double() / 255).tolist()) for key, x in values.items() if x is not None}
