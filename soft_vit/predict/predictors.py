"""Predictors: a model with its weights, its preparation of images and its class names."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DATASETS, FUNCTIONS, MODELS, init_default_scope
from mmengine.structures import BaseDataElement
from PIL import Image
from timm.data import ImageNetInfo, create_transform, infer_imagenet_subset, resolve_model_data_config
from torch import nn
from torchvision.transforms.v2.functional import pil_to_tensor

from soft_vit.data.label_maps import IGNORED
from soft_vit.engine.config import load_config
from soft_vit.engine.config_values import take_trained_classes, type_name
from soft_vit.engine.data.eval_data import set_view, view_of_config
from soft_vit.engine.errors import one_line
from soft_vit.engine.models.notes import model_options, trained_notes
from soft_vit.engine.models.tested_model import fit_image_size
from soft_vit.engine.models.timm_model import create_timm_model
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.models.pyramid import PyramidViT
from soft_vit.models.vit import AttentionViT
from soft_vit.predict.results import RankedClasses, Result, ranked_classes, result_of
from soft_vit.weights.load import describe_mismatch, fit_weights, parameter_names
from soft_vit.weights.read import Notes, notes_of, unwrap_state_dict

__all__ = ["ConfigPredictor", "Predictor", "TimmPredictor", "load_predictor", "readable_names"]


class TimmPredictor:
    """A timm model by name, which resizes, crops and normalises images as timm does for it.

    checkpoint: a file of weights, which decide the number of classes; its input size, normalisation and model options
    (see `trained_notes`) override the model's own. pretrained: without a checkpoint, load the published weights; False
    keeps random ones. img_size: side of the images in pixels, by default the checkpoint's, else the model's. topk:
    classes reported for an image. Class names come from the checkpoint, else the model's configuration, else ImageNet.

    notes: a sentence for each change of the weights and for each default in place of a missing value. Raises ValueError
    or FileNotFoundError for a model or a file that cannot be used.
    """

    def __init__(
        self,
        name: str,
        *,
        checkpoint: str | Path | None = None,
        pretrained: bool = True,
        img_size: int | None = None,
        topk: int = 5,
        device: str | torch.device = "cpu",
    ) -> None:
        self.topk = topk
        self.device = torch.device(device)
        self.notes: list[str] = []
        content = {} if checkpoint is None else load_checkpoint_file(checkpoint)
        notes = Notes() if checkpoint is None else trained_notes(content, checkpoint)
        told = dict(notes.cfg)
        self.model = _create(name, pretrained and checkpoint is None, notes).eval()
        if img_size is not None:
            told["input_size"] = (3, img_size, img_size)
        if "input_size" in told:
            fit_image_size(self.model, told["input_size"][1:])
        # Where an export finds them as well.
        self.model.pretrained_cfg = {**getattr(self.model, "pretrained_cfg", {}), **told}
        if checkpoint is not None:
            self.notes = [*_defaults_used(told, notes, name, checkpoint), *_load_timm(self.model, content, checkpoint)]
        if not getattr(self.model, "num_classes", 0):
            raise ValueError(f"{name} has no classification head; name a classification model.")
        self.transform = create_transform(**resolve_model_data_config(self.model), is_training=False)
        self.names = _timm_class_names(self.model)
        self.model.to(self.device)

    @torch.inference_mode()
    def __call__(self, images: Sequence[Image.Image]) -> list[RankedClasses]:
        """The result of each RGB image, of any size."""
        batch = torch.stack([self.transform(image) for image in images]).to(self.device)
        scores = self.model(batch).float().softmax(dim=-1)
        return [ranked_classes(row, self.names, self.topk) for row in scores]


def _create(name: str, pretrained: bool, notes: Notes) -> nn.Module:
    """The model, with the options that a checkpoint notes, such as the inverse."""
    model = create_timm_model(name, pretrained)
    # The size is that of the images.
    options = model_options({"model": {key: value for key, value in notes.options.items() if key != "img_size"}})
    if not options or not isinstance(model, PyramidViT | AttentionViT):
        return model
    try:
        return timm.create_model(name, **options)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} cannot be made as the checkpoint says: {one_line(error)}.") from error


def _defaults_used(told: dict[str, Any], notes: Notes, name: str, checkpoint: str | Path) -> list[str]:
    """A sentence on what the checkpoint leaves to the model's defaults, if anything."""
    missing = [what for key, what in (("input_size", "size"), ("mean", "normalisation")) if key not in told]
    if not missing:
        return []
    options = "" if notes.options else ", nor the options of its model"
    what = " and ".join(missing)
    return [f"{checkpoint} does not give the {what} of its images{options}; the defaults of {name} are used."]


def _load_timm(model: nn.Module, content: dict[str, Any], source: str | Path) -> list[str]:
    """Load weights and their number of classes, in place; returns a sentence for each change of the weights."""
    given = unwrap_state_dict(content, str(source))
    heads = parameter_names(model, "classifier", ".weight")
    if heads and heads[0] in given:
        count = given[heads[0]].shape[0]
        if count != model.num_classes:
            model.reset_classifier(count)
    weights, sentences = fit_weights(content, model)
    if any(head not in weights for head in heads):
        raise ValueError(f"{source} has no classification head; give weights of a classification model.")
    model.load_state_dict(weights, strict=False)
    return sentences


def _timm_class_names(model: nn.Module) -> list[str]:
    names = model.pretrained_cfg.get("label_names") or ()
    if len(names) == model.num_classes:
        return readable_names(names)
    subset = infer_imagenet_subset({"num_classes": model.num_classes})
    return readable_names(() if subset is None else ImageNetInfo(subset).label_names())


def readable_names(names: Sequence[Any]) -> list[str]:
    """Class names, with words for WordNet's numbers such as n01440764."""
    names = [str(name) for name in names]
    if not names or not all(re.fullmatch(r"n\d{8}", name) for name in names):
        return names
    words = ImageNetInfo().label_name_to_description
    try:
        return [words(name) for name in names]
    except KeyError:
        return names


class ConfigPredictor:
    """The model of a config with the weights of a checkpoint, fed as the config's test loop feeds it.

    A run's averaged weights are preferred to its plain ones. img_size: side of a classifier's images in pixels, by
    default the config's. score_thr: lowest score of an instance. topk: classes reported for an image. options: entries
    of the config by dotted name. Class names come from the checkpoint, else from the config's test data.

    notes: a sentence for each change of the weights. Raises ValueError or FileNotFoundError for a config or a file that
    cannot be used.
    """

    def __init__(
        self,
        config: str | Path,
        checkpoint: str | Path,
        *,
        img_size: int | None = None,
        score_thr: float = 0.3,
        topk: int = 5,
        device: str | torch.device = "cpu",
        options: dict | None = None,
    ) -> None:
        self.score_thr = score_thr
        self.topk = topk
        cfg = load_config(config, options)
        content = load_checkpoint_file(checkpoint)
        trained = notes_of(content).cfg.get("label_names", ())
        take_trained_classes(cfg, trained)
        init_default_scope(cfg.get("default_scope") or "mmengine")
        self.model = _build(cfg)
        _set_image_size(cfg, self.model, img_size)
        self.notes: list[str] = _load_config(self.model, content, checkpoint)
        self.names = _config_class_names(cfg, trained)
        self.prepare = _preparation(cfg)
        self.collate = _collate(cfg)
        self.model.to(device).eval()

    @torch.inference_mode()
    def __call__(self, images: Sequence[Image.Image]) -> list[Result]:
        """The result of each RGB image, of any size."""
        batch = self.collate([self.prepare(image) for image in images])
        samples = self.model.test_step(batch)
        return [result_of(sample, self.names, self.score_thr, self.topk) for sample in samples]


def _build(cfg: Config) -> nn.Module:
    model = cfg.model
    if cfg.get("data_preprocessor") is not None:
        # As Runner does.
        model.setdefault("data_preprocessor", cfg.data_preprocessor)
    if model.get("pretrained") is True:
        # The checkpoint has all weights.
        model.pretrained = False
    return MODELS.build(model)


def _load_config(model: nn.Module, content: dict[str, Any], source: str | Path) -> list[str]:
    """Load weights that must all fit, in place; returns a sentence for each change of them."""
    if _is_timm_classifier(model):
        # They may have names of the released code, or parameters of another grid.
        given, sentences = fit_weights(content, model.model)
    else:
        given, sentences = unwrap_state_dict(content, str(source)), []
    if mismatch := describe_mismatch(model.state_dict(), given):
        raise ValueError(
            f"The checkpoint {source} belongs to another model: {mismatch}; give the config that it was trained with."
        )
    model.load_state_dict(given, strict=False)
    return sentences


def _is_timm_classifier(model: nn.Module) -> bool:
    return hasattr(getattr(model, "model", None), "pretrained_cfg")


def _set_image_size(cfg: Config, model: nn.Module, img_size: int | None) -> None:
    """Set the size of a classifier and of its config's test images, in place; None keeps the config's."""
    if img_size is not None and not _is_timm_classifier(model):
        raise ValueError(
            f"img_size is {img_size} and applies to classifiers of timm only; resize the images of this config with "
            "--cfg-options, such as model.min_size."
        )
    # The pipeline of images generated at one size would not resize images on disk.
    if img_size is not None or "size" in cfg.test_dataloader.dataset:
        set_view(cfg, view_of_config(cfg, img_size, None))
    if img_size is not None:
        fit_image_size(model.model, img_size)


def _config_class_names(cfg: Config, trained: Sequence[str]) -> list[str]:
    dataset = cfg.test_dataloader.dataset
    sources = (dataset.get("metainfo"), getattr(DATASETS.get(dataset.type), "METAINFO", None))
    return readable_names(trained or next(filter(None, ((source or {}).get("classes") for source in sources)), ()))


def _collate(cfg: Config) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
    """The function with which a config's test loop batches samples."""
    arguments = dict(cfg.test_dataloader.get("collate_fn") or {"type": "pseudo_collate"})
    return partial(FUNCTIONS.get(arguments.pop("type")), **arguments)


def _preparation(cfg: Config) -> Callable[[Image.Image], dict[str, Any]]:
    """A function that makes a sample of an image as a config's test data set does."""
    dataset = cfg.test_dataloader.dataset
    if "pipeline" not in dataset:
        # CocoImages gives whole images; the detector resizes them.
        return lambda image: {
            "inputs": pil_to_tensor(image),
            "data_samples": BaseDataElement(metainfo={"ori_shape": image.size[::-1]}),
        }
    names = [type_name(transform) for transform in dataset.pipeline]
    steps = zip(names, dataset.pipeline, strict=True)
    pipeline = Compose([transform for name, transform in steps if not name.startswith("Load")])

    def prepare(image: Image.Image) -> dict[str, Any]:
        shape = image.size[::-1]
        sample = {"img_shape": shape, "ori_shape": shape, "img_path": "", "sample_idx": 0}
        if type_name(dataset) == "LabelMapTree":
            sample |= {"img": pil_to_tensor(image), "gt_seg_map": torch.full(shape, IGNORED, dtype=torch.uint8)}
        elif "LoadImageFromFile" in names:
            # mmcv's loader gives BGR.
            sample["img"] = np.ascontiguousarray(np.array(image)[..., ::-1])
        else:
            sample["img"] = np.array(image)
        return pipeline(sample)

    return prepare


Predictor = TimmPredictor | ConfigPredictor
"""What predicts for an image: a model by its name, or one of a config."""


def load_predictor(
    model: str | None = None,
    config: str | Path | None = None,
    checkpoint: str | Path | None = None,
    *,
    pretrained: bool = True,
    img_size: int | None = None,
    score_thr: float = 0.3,
    topk: int = 5,
    device: str | None = None,
    options: dict | None = None,
) -> Predictor:
    """The `TimmPredictor` of a model's name, or the `ConfigPredictor` of a config and its checkpoint.

    device: by default a GPU if there is one. Raises ValueError or FileNotFoundError for arguments that cannot be used.
    """
    if (model is None) == (config is None):
        raise ValueError("Give either the name of a timm model (--model), or --config and --checkpoint.")
    if not 0 <= score_thr <= 1:
        raise ValueError(f"score_thr is {score_thr}; give a score from 0 to 1.")
    if topk < 1:
        raise ValueError(f"topk is {topk}; give at least 1.")
    try:
        # Allocates, since a well-formed name may stand for a device that is absent.
        place = torch.empty(0, device=device or ("cuda" if torch.cuda.is_available() else "cpu")).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"There is no device {device!r} here; leave it out, or give cpu.") from error
    if model is not None:
        if options:
            raise ValueError(f"{model} has no config to set options of; leave --cfg-options out, or give --config.")
        return TimmPredictor(
            model, checkpoint=checkpoint, pretrained=pretrained, img_size=img_size, topk=topk, device=place
        )
    if checkpoint is None:
        raise ValueError(f"The config {config} has no weights; give a file of them with --checkpoint.")
    return ConfigPredictor(
        config, checkpoint, img_size=img_size, score_thr=score_thr, topk=topk, device=place, options=options
    )
