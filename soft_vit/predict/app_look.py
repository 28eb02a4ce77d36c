"""Predict for one picture and record its attentions: matrices, and shares of the output of their layers.

Pictures are square, so that every model sees the whole picture and positions agree between picture and maps.
Letters: H heads, N tokens, M keys.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import timm
import torch
from huggingface_hub import try_to_load_from_cache
from PIL import Image
from timm.data import create_transform
from timm.models import get_pretrained_cfg
from torch import Tensor

from soft_vit.data.images import BadImage, decode_image
from soft_vit.layers import Attention
from soft_vit.models.swap import swap_attention
from soft_vit.predict import RankedClasses, TimmPredictor
from soft_vit.probe.attentions import attentions, stage_number
from soft_vit.probe.health import Probe, probe
from soft_vit.probe.view import on_map
from soft_vit.weights import RECORDED_WEIGHTS
from soft_vit.weights.fetch import lookup_folders

MAX_BYTES = 30 * 2**20
# More than the cameras of phones, less than the memory of a small machine.
MAX_PIXELS = 64_000_000
# Larger pictures are scaled down to this side, which is above the input size of all models here.
MAX_SIDE = 768

SWAPPED = ("soft", "linear")
"""Attentions that timm's ViTs also have in exchange."""

DEPTHS = {"first": 0.0, "middle": 0.5, "last": 1.0}
"""Relative depth of a layer in its stage."""


class Choice(NamedTuple):
    """A model by its timm name, with pretrained weights, those of a file, or random ones.

    swapped: attention that replaces that of timm's ViT; `softmax` computes the same and has a matrix to look at.
    """

    name: str
    pretrained: bool = False
    checkpoint: str | None = None
    swapped: str | None = None


@dataclass
class LayerLook:
    """The attention of one layer. Stages, and layers of a stage, count from 1.

    matrix: `[H, N, M]` on the CPU, None where it was not requested or does not exist. Prefix tokens come first in its
    rows and columns.
    """

    stage: int
    layer: int
    attn: Attention
    probe: Probe
    matrix: Tensor | None

    @property
    def side(self) -> int:
        """Number of tokens on a side of the map."""
        return math.isqrt(self.matrix.shape[1])

    def cell(self, place: tuple[float, float]) -> tuple[int, int]:
        """Return row and column of the token at a place (x, y), both from 0 to 1."""
        x, y = (min(int(at * self.side), self.side - 1) for at in place)
        return y, x

    def row(self, place: tuple[float, float]) -> np.ndarray:
        """Return the weights of the token at a place, `[H, h, w]`, see `on_map`; needs a matrix."""
        prefix, (row, column) = self.matrix.shape[1] - self.side**2, self.cell(place)
        weights = self.matrix[:, prefix + row * self.side + column, prefix:]
        return on_map(weights, self.attn, (self.side, self.side)).numpy()


@dataclass
class Look:
    """A prediction for a picture, and the attentions of the model. shown: one layer of each stage.

    image_size: (H, W) of the model's input. notes: sentences about the weights.
    """

    prediction: RankedClasses
    image_size: tuple[int, int]
    notes: list[str]
    layers: list[LayerLook]
    shown: list[LayerLook]


def available(checkpoint: str | None = None, model: str | None = None) -> dict[str, Choice]:
    """Return the models that need no download, by a title that names the weights.

    checkpoint, model: a file of weights and the name of its model, which come first; a model alone has random weights.
    Models with weights on disk follow: those of the package, and ViTs that timm has downloaded before.
    """
    found = {f"{model}, {checkpoint or 'random weights'}": Choice(model, checkpoint=checkpoint)} if model else {}
    folders = lookup_folders()
    recorded = RECORDED_WEIGHTS.items()
    found |= {name: Choice(name, True) for name, e in recorded if any((f / e.file).is_file() for f in folders)}
    for name in timm.list_models(["vit_*", "deit*"], pretrained=True):
        if try_to_load_from_cache(get_pretrained_cfg(name).hf_hub_id or "none", "model.safetensors"):
            found[name] = Choice(name, True, swapped="softmax")
            found |= {f"{name} with {kind}": Choice(name, True, swapped=kind) for kind in SWAPPED}
    return found


def load_choice(choice: Choice) -> TimmPredictor:
    """Return the model of a choice, without a crop of its images; random weights are always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        predictor = TimmPredictor(choice.name, checkpoint=choice.checkpoint, pretrained=choice.pretrained)
        if choice.swapped:
            swap_attention(predictor.model, choice.swapped)
    whole = {**predictor.data, "crop_pct": 1.0, "crop_mode": "center"}
    predictor.transform = create_transform(**whole, is_training=False)
    return predictor


def open_picture(data: bytes, size: int = 0) -> Image.Image:
    """Return the middle square of an encoded image, in RGB. Raises BadImage.

    size: of a file whose data were not sent because it is too large.
    """
    try:
        if max(len(data), size) > MAX_BYTES:
            raise BadImage(f"it has more than {MAX_BYTES >> 20} MB")
        image = decode_image(data, MAX_PIXELS)
    except BadImage as error:
        raise BadImage(f"The file cannot be read as an image ({error}); give another.") from error
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.crop((left, top, left + side, top + side))
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    return image


def look(predictor: TimmPredictor, picture: Image.Image, depth: str = "last") -> Look:
    """Return the `Look` of a model of this package at a square picture. depth: key of DEPTHS."""
    model, watched = predictor.model, attentions(predictor.model)
    if not watched:
        raise ValueError("model must have an attention of this package, as soft_tiny does.")
    stages: dict[int, list[str]] = defaultdict(list)
    for name in watched:
        # A ViT is a single stage.
        stages[stage_number(name) or 1].append(name)
    chosen = [names[round(DEPTHS[depth] * (len(names) - 1))] for _, names in sorted(stages.items())]
    matrices: dict[str, Tensor] = {}

    def keep(name: str, found: Probe, matrix: Tensor) -> None:
        # Windows have several matrices.
        if len(matrix) == 1 and image.shape[2] == image.shape[3]:
            matrices[name] = matrix[0].float().cpu()

    image = predictor.transform(picture)[None]
    probes = probe(model, image, {name: partial(keep, name) for name in chosen})
    layers = {
        name: LayerLook(stage, layer, watched[name], probes[name], matrices.get(name))
        for stage, names in sorted(stages.items())
        for layer, name in enumerate(names, 1)
    }
    (prediction,) = predictor([picture])
    shown = [layers[name] for name in chosen]
    return Look(prediction, tuple(image.shape[-2:]), predictor.notes, list(layers.values()), shown)
