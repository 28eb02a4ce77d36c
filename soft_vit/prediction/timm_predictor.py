"""Predictions of a classification model of timm."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from PIL import Image
from timm.data import ImageNetInfo, create_transform, infer_imagenet_subset, resolve_model_data_config
from torch import nn

from soft_vit.engine.checkpoints.safe_checkpoint import load_checkpoint_file
from soft_vit.engine.checkpoints.trained_config import model_options, trained_notes
from soft_vit.engine.errors import UserError, as_user_error, one_line
from soft_vit.engine.models.finetune import fit_weights, parameter_names
from soft_vit.engine.models.tested_model import fit_image_size
from soft_vit.engine.models.timm_model import create_timm_model
from soft_vit.models.pyramid import PyramidViT
from soft_vit.prediction.results import RankedClasses, ranked_classes
from soft_vit.weights.reading import Notes, unwrap_state_dict

__all__ = ["TimmPredictor", "readable_names"]


class TimmPredictor:
    """A timm model by name, with its own way of resizing, cropping and normalising.

    checkpoint: a file of weights; they decide how many classes there are, and what the file says of its images (see
    `trained_notes`) and of the model's options comes before what is known of the model. pretrained: its published
    weights, without a checkpoint; False for random ones. img_size: side of the images, by default the checkpoint's,
    else the model's own. topk: classes of each image. Names of classes are those of the checkpoint, else those
    recorded with the model, else ImageNet's, where their number fits.

    notes: a sentence for each thing that had to be changed in the weights, and for what nothing says. Raises UserError
    (a ValueError) or FileNotFoundError for what cannot be used.
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
            _fit_size(self.model, told["input_size"][1:])
        # An export, which takes the model from here, looks for them in the same place.
        self.model.pretrained_cfg = {**getattr(self.model, "pretrained_cfg", {}), **told}
        if checkpoint is not None:
            self.notes = [*_untold(told, name, checkpoint), *_load(self.model, content, checkpoint)]
        if not getattr(self.model, "num_classes", 0):
            raise UserError(f"{name} has no head that tells classes apart; give the name of a classification model.")
        self.transform = create_transform(**resolve_model_data_config(self.model), is_training=False)
        self.names = _class_names(self.model)
        self.model.to(self.device)

    @torch.inference_mode()
    def __call__(self, images: Sequence[Image.Image]) -> list[RankedClasses]:
        """A result for each RGB image, of any size."""
        batch = torch.stack([self.transform(image) for image in images]).to(self.device)
        scores = self.model(batch).float().softmax(dim=-1)
        return [ranked_classes(row, self.names, self.topk) for row in scores]


def _create(name: str, pretrained: bool, notes: Notes) -> nn.Module:
    """The model, with the options that a checkpoint notes for it, such as the inverse."""
    model = create_timm_model(name, pretrained)
    # The size is that of the images; no other file may be named.
    options = model_options({"model": {key: value for key, value in notes.options.items() if key != "img_size"}})
    if not options or not isinstance(model, PyramidViT):
        return model
    try:
        return timm.create_model(name, **options)
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{name} cannot be made as the checkpoint says: {one_line(error)}.") from error


def _fit_size(model: nn.Module, size: tuple[int, int]) -> None:
    """Make a model ready for images of a height and width, in place; UserError when it cannot take them."""
    height, width = size
    if height == width:
        fit_image_size(model, height)
    elif hasattr(model, "set_input_size"):
        try:
            model.set_input_size(size)
        except (ValueError, AssertionError) as error:
            raise UserError(f"The model does not take images of {height} x {width}: {one_line(error)}.") from error


def _untold(told: dict[str, Any], name: str, checkpoint: str | Path) -> list[str]:
    """What had to be taken from the model, because the checkpoint does not say it, in a sentence."""
    missing = [what for key, what in (("input_size", "size"), ("mean", "normalisation")) if key not in told]
    if not missing:
        return []
    what = " and ".join(missing)
    return [f"Nothing in {checkpoint} says the {what} of its images; the defaults of {name} are used."]


def _load(model: nn.Module, content: dict[str, Any], source: str | Path) -> list[str]:
    """Load weights with their own number of classes, in place; returns what had to be changed in them."""
    with as_user_error():
        given = unwrap_state_dict(content, str(source))
    heads = parameter_names(model, "classifier", ".weight")
    if heads and heads[0] in given:
        count = given[heads[0]].shape[0]
        if count != model.num_classes:
            model.reset_classifier(count)
    weights, sentences = fit_weights(content, model)
    if any(head not in weights for head in heads):
        raise UserError(f"{source} holds no head that tells classes apart; give weights of a classification model.")
    model.load_state_dict(weights, strict=False)
    return sentences


def _class_names(model: nn.Module) -> list[str]:
    names = model.pretrained_cfg.get("label_names") or ()
    if len(names) == model.num_classes:
        return readable_names(names)
    subset = infer_imagenet_subset({"num_classes": model.num_classes})
    return readable_names(() if subset is None else ImageNetInfo(subset).label_names())


def readable_names(names: Sequence[Any]) -> list[str]:
    """Names of classes, with words in the place of WordNet's numbers such as n01440764."""
    names = [str(name) for name in names]
    if not names or not all(re.fullmatch(r"n\d{8}", name) for name in names):
        return names
    words = ImageNetInfo().label_name_to_description
    try:
        return [words(name) for name in names]
    except KeyError:
        return names
