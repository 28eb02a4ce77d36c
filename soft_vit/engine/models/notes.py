"""Notes of a training in its checkpoints: the model, its options, its preprocessing, facts for a model card."""

import contextlib
from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from mmengine.config import Config
from mmengine.runner import Runner
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from soft_vit.engine.data.views import view_of_config
from soft_vit.engine.models.timm_model import unwrapped
from soft_vit.layers import ATTENTIONS, attention_options
from soft_vit.models.pyramid import PyramidViT
from soft_vit.weights.read import Notes


def notes_of_config(config: Mapping[str, Any]) -> Notes:
    """Return the notes of a training config: the model's options, preprocessing, facts for a model card."""
    given = model_options(config).items()
    options = {key: value for key, value in given if "drop" not in key and key != "num_classes"}
    return Notes(None, options, cfg_of_config(config), training_facts(config))


def notes_of_run(runner: Runner) -> Notes | None:
    """Return the notes for the checkpoints of a run, or None for a model other than a timm classifier."""
    classifier = unwrapped(runner.model)
    network = getattr(classifier, "model", None)
    if not isinstance(network, nn.Module) or not hasattr(network, "pretrained_cfg"):
        return None
    notes = notes_of_config(runner.cfg)
    options, cfg = notes.options, notes.cfg
    # The weights themselves tell their channels.
    options.pop("in_chans", None)
    if hasattr(network, "img_size"):
        options["img_size"] = list(network.img_size)
    preprocessor = getattr(classifier, "data_preprocessor", None)
    if getattr(preprocessor, "mean", None) is not None:
        for key in ("mean", "std"):
            cfg[key] = tuple((getattr(preprocessor, key).flatten().double() / 255).tolist())
    classes = getattr(getattr(runner.train_dataloader, "dataset", None), "metainfo", {}).get("classes")
    if classes:
        cfg["label_names"] = tuple(str(name) for name in classes)
    return Notes(network.pretrained_cfg.get("architecture"), _plain(options), _plain(cfg), notes.training)


def training_facts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return facts of a training config for a model card, a word or two each."""
    train, loader = config.get("train_cfg") or {}, config.get("train_dataloader") or {}
    optimizer = (config.get("optim_wrapper") or {}).get("optimizer") or {}
    found = {
        "labels of an image": "several" if (config.get("model") or {}).get("multi_label") else None,
        "epochs": train.get("max_epochs"),
        "iterations": train.get("max_iters"),
        "optimizer": optimizer.get("type"),
        "learning rate": optimizer.get("lr"),
        "weight decay": optimizer.get("weight_decay"),
        "batch size of a process": loader.get("batch_size"),
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def cfg_of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of timm's pretrained_cfg that a training config determines: size, crop, mean, std."""
    found: dict[str, Any] = {}
    model = config.get("model") or {}
    size = model.get("img_size")
    # Without test images, or with those of another task than classification.
    with contextlib.suppress(ValueError, AttributeError):
        view = view_of_config(Config(dict(config)))
        found = {key: getattr(view, key) for key in ("crop_pct", "interpolation", "crop_mode")}
        size = size or view.img_size
    prepared = model.get("data_preprocessor") or config.get("data_preprocessor") or {}
    if prepared.get("mean") is not None and prepared.get("std") is not None:
        found |= {key: tuple(value / 255 for value in prepared[key]) for key in ("mean", "std")}
    if size is not None:
        found["input_size"] = (3, size, size) if isinstance(size, int) else (3, *size)
    return found


def model_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a pyramid or ViT, such as its inverse, that a training config sets."""
    own = {name for cls in (PyramidViT, VisionTransformer) for name in signature(cls.__init__).parameters}
    own -= {"self", "device", "dtype", "attn_options"}
    for cls in ATTENTIONS.values():
        own |= attention_options(cls).keys()
    return {key: value for key, value in (config.get("model") or {}).items() if key in own}


def _plain(value: Any) -> Any:
    """Return a copy of plain Python types, without MMEngine's, which the safe reader would refuse."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value) if type(value) in (list, tuple) else list(value)
    return value.tolist() if isinstance(value, torch.Tensor) else value
