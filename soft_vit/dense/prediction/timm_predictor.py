"""Predictions of a classification model of timm."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from timm.data import ImageNetInfo, create_transform, infer_imagenet_subset, resolve_model_data_config
from torch import nn

from soft_vit.dense.prediction.results import RankedClasses, ranked_classes
from soft_vit.engine.errors import UserError
from soft_vit.engine.evaluation import fit_image_size
from soft_vit.engine.finetune import fit_weights
from soft_vit.engine.safe_checkpoint import load_checkpoint_file
from soft_vit.engine.timm_model import create_timm_model
from soft_vit.models.checkpoint import unwrap_state_dict

__all__ = ["TimmPredictor", "readable_names"]


class TimmPredictor:
    """A timm model by name, with its own way of resizing, cropping and normalising.

    checkpoint: a file of weights; they decide how many classes there are. pretrained: its published weights, without a
    checkpoint; False for random ones. img_size: side of the images, by default the model's own. topk: classes of each
    image. Names of classes are those in the checkpoint, else those
    recorded with the weights, else ImageNet's, where their number fits.

    notes: a sentence for each thing that had to be changed in the weights. Raises UserError (a ValueError) or
    FileNotFoundError for what cannot be used.
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
        self.model = create_timm_model(name, pretrained and checkpoint is None).eval()
        if img_size is not None:
            fit_image_size(self.model, img_size)
        if checkpoint is not None:
            self.notes = _load(self.model, content, checkpoint)
        if not getattr(self.model, "num_classes", 0):
            raise UserError(f"{name} has no head that tells classes apart; give the name of a classification model.")
        data = resolve_model_data_config(self.model)
        if img_size is not None:
            data["input_size"] = (data["input_size"][0], img_size, img_size)
        self.transform = create_transform(**data, is_training=False)
        self.names = _class_names(self.model, content)
        self.model.to(self.device)

    @torch.inference_mode()
    def __call__(self, images: Sequence[Image.Image]) -> list[RankedClasses]:
        """A result for each RGB image, of any size."""
        batch = torch.stack([self.transform(image) for image in images]).to(self.device)
        scores = self.model(batch).float().softmax(dim=-1)
        return [ranked_classes(row, self.names, self.topk) for row in scores]


def _load(model: nn.Module, content: dict[str, Any], source: str | Path) -> list[str]:
    """Load weights with their own number of classes, in place; returns what had to be changed in them."""
    try:
        given = unwrap_state_dict(content, str(source))
    except ValueError as error:
        raise UserError(str(error)) from error
    heads = getattr(model, "pretrained_cfg", {}).get("classifier") or ()
    heads = [f"{head}.weight" for head in ([heads] if isinstance(heads, str) else heads)]
    if heads and heads[0] in given:
        count = given[heads[0]].shape[0]
        if count != model.num_classes:
            model.reset_classifier(count)
    weights, sentences = fit_weights(content, model)
    if any(head not in weights for head in heads):
        raise UserError(f"{source} holds no head that tells classes apart; give weights of a classification model.")
    model.load_state_dict(weights, strict=False)
    return sentences


def _class_names(model: nn.Module, content: dict[str, Any]) -> list[str]:
    in_checkpoint = ((content.get("meta") or {}).get("dataset_meta") or {}).get("classes") or ()
    of_weights = getattr(model, "pretrained_cfg", {}).get("label_names") or ()
    for names in (in_checkpoint, of_weights):
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
