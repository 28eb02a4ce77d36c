"""What a model makes of one picture: its prediction, where each attention looks, and what it adds to its layer.

Pictures are square, so that every model sees all of a picture, and a place on it is a place on every map.
Letters: H heads, N tokens, M keys.
"""

import re
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib import colormaps
from PIL import Image, ImageDraw
from timm.data import create_transform, resolve_model_data_config
from torch import Tensor

from soft_vit.data.images import BadImage, decode_image
from soft_vit.layers import Attention
from soft_vit.models.names import MODELS
from soft_vit.models.vit import VIT_MODELS
from soft_vit.models.zoo import ZOO
from soft_vit.ops.layout import Layout, square_layout
from soft_vit.predict import RankedClasses, TimmPredictor
from soft_vit.probe.attentions import attentions, kind_name, output_shares
from soft_vit.probe.matrix import watch_attention
from soft_vit.probe.spectrum import Spectrum, cumulative_singular_values
from soft_vit.probe.view import OPACITY, colour_scale, key_grid
from soft_vit.weights import ENTRIES
from soft_vit.weights.files import lookup_folders

MOST_BYTES = 30 * 2**20
# Above what phones take, below what fills a small machine's memory.
MOST_PIXELS = 64_000_000
# Larger ones are scaled down to this side, more than any model here sees.
MOST_SIDE = 768
# Singular values of larger matrices take seconds and more.
MOST_TOKENS = 1024
PANEL_SIDE = 168

DEPTHS = {"first": 0.0, "middle": 0.5, "last": 1.0}
"""Where in a stage a layer stands."""


class Choice(NamedTuple):
    """A model by its timm name, and its weights: recorded ones, those of a file, or else random ones."""

    name: str
    pretrained: bool = False
    checkpoint: str | None = None


@dataclass
class LayerLook:
    """One attention. Stages and layers of a stage count from 1.

    share, rest: see `output_shares`. matrix: `[H, N, M]` on the CPU, None where it was not asked for or the kind has
    none. feat_size, key_size: the grids of its rows and columns, which num_prefix_tokens stand before.
    """

    stage: int
    layer: int
    attention: str
    share: float
    rest: float
    matrix: Tensor | None = None
    feat_size: tuple[int, int] = (0, 0)
    key_size: tuple[int, int] = (0, 0)
    num_prefix_tokens: int = 0

    def cell(self, place: tuple[float, float]) -> tuple[int, int]:
        """Row and column of the token at a place (x, y), both from 0 to 1."""
        (x, y), (height, width) = place, self.feat_size
        return min(int(y * height), height - 1), min(int(x * width), width - 1)

    def row(self, place: tuple[float, float]) -> np.ndarray:
        """Where the token at a place looks, `[H, h, w]`; ValueError without a matrix."""
        if self.matrix is None:
            raise ValueError(f"{self.attention} has no attention matrix here.")
        row, column = self.cell(place)
        index = self.num_prefix_tokens + row * self.feat_size[1] + column
        return self.matrix[:, index, self.num_prefix_tokens :].unflatten(-1, self.key_size).numpy()

    def spectrum(self) -> Spectrum | None:
        """None without a matrix, and for one of more than MOST_TOKENS tokens."""
        if self.matrix is None or self.matrix.shape[1] > MOST_TOKENS:
            return None
        return Spectrum(self.stage, self.layer, self.attention, cumulative_singular_values(self.matrix).numpy())


@dataclass
class Look:
    """What a model makes of a picture. shown: the layers that were asked for, one for each stage.

    image_size: of what the model sees. notes: on its weights.
    """

    prediction: RankedClasses
    image_size: tuple[int, int]
    notes: list[str]
    layers: list[LayerLook]
    shown: list[LayerLook]


def available(checkpoint: str | None = None, model: str | None = None) -> dict[str, Choice]:
    """What can be looked at, by a title that tells the weights; nothing of it needs a download.

    checkpoint, model: a file of weights and the name of its model, which come first. Then models with weights on disk,
    the recorded default of each first, and every model of the package with random weights.
    """
    found = {f"{model}, {checkpoint}": Choice(model, checkpoint=checkpoint)} if model and checkpoint else {}
    folders = lookup_folders()
    found |= {name: Choice(name, True) for name, e in ENTRIES.items() if any((f / e.file).is_file() for f in folders)}
    return found | {f"{name}, random weights": Choice(name) for name in [*MODELS, *VIT_MODELS, *ZOO]}


def load_choice(choice: Choice) -> TimmPredictor:
    """The model of a choice, which sees a square picture whole; random weights are always the same.

    Raises ValueError or FileNotFoundError for weights that cannot be used.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        predictor = TimmPredictor(choice.name, checkpoint=choice.checkpoint, pretrained=choice.pretrained)
    config = resolve_model_data_config(predictor.model)
    predictor.transform = create_transform(**{**config, "crop_pct": 1.0, "crop_mode": "center"}, is_training=False)
    return predictor


def open_picture(data: bytes, size: int = 0) -> Image.Image:
    """The middle square of an encoded image, in RGB. Raises BadImage, in one sentence.

    size: of a file whose data were not sent because it is too large.
    """
    try:
        if max(len(data), size) > MOST_BYTES:
            raise BadImage(f"it has more than {MOST_BYTES >> 20} MB")
        image = decode_image(data, MOST_PIXELS)
    except BadImage as error:
        raise BadImage(f"The file cannot be read as an image ({error}); give another.") from error
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.crop((left, top, left + side, top + side))
    image.thumbnail((MOST_SIDE, MOST_SIDE), Image.Resampling.LANCZOS)
    return image


def look(predictor: TimmPredictor, picture: Image.Image, depth: str = "last") -> Look:
    """What a model of this package makes of a square picture; depth, a key of DEPTHS, chooses a layer of each stage.

    Raises ValueError for a model without attentions of this package, or whose images are not square.
    """
    model, image = predictor.model, predictor.transform(picture)[None]
    shares, watched = output_shares(model, image), attentions(model)
    if not watched:
        raise ValueError("The model has no attention of this package; give one such as soft_tiny.")
    stages: dict[int, list[LayerLook]] = {}
    layers: dict[str, LayerLook] = {}
    for name, attn in watched.items():
        # A ViT is a single stage.
        number = re.search(r"(?:stages|layers)\.(\d+)\.", name)
        stage = stages.setdefault(int(number[1]) + 1 if number else 1, [])
        block = re.search(r"blocks\.(\d+)\.", name)
        layers[name] = LayerLook(
            int(number[1]) + 1 if number else 1,
            int(block[1]) + 1 if block else len(stage) + 1,
            kind_name(attn),
            *shares[name],
        )
        stage.append(layers[name])
    shown = [stage[round(DEPTHS[depth] * (len(stage) - 1))] for _, stage in sorted(stages.items())]

    def place(layer: LayerLook, attn: Attention, args: tuple[Any, ...]) -> None:
        layout: Layout = square_layout(args[0], None, None)
        layer.feat_size, layer.num_prefix_tokens = layout.feat_size, layout.num_prefix_tokens
        layer.key_size = key_grid(attn, layout.feat_size)

    def keep(layer: LayerLook, matrix: Tensor) -> None:
        layer.matrix = matrix[0].float().cpu()

    with ExitStack() as stack:
        for name, attn in watched.items():
            stack.callback(attn.register_forward_pre_hook(partial(place, layers[name])).remove)
            if layers[name] in shown and hasattr(attn, "attend"):
                stack.enter_context(watch_attention(attn, partial(keep, layers[name])))
        (prediction,) = predictor([picture])
    return Look(prediction, tuple(image.shape[-2:]), predictor.notes, list(layers.values()), shown)


def draw_row(values: np.ndarray, picture: Image.Image, layer: LayerLook, place: tuple[float, float]) -> Image.Image:
    """Weights `[h, w]` of the token at a place over the picture in grey, with a frame around the token."""
    colours, lowest, largest = colour_scale(values)
    painted = colormaps[colours]((values - lowest) / (largest - lowest), bytes=True)[..., :3]
    weights = Image.fromarray(painted).resize((PANEL_SIDE, PANEL_SIDE), Image.Resampling.NEAREST)
    grey = picture.convert("L").resize((PANEL_SIDE, PANEL_SIDE)).convert("RGB")
    panel = Image.blend(grey, weights, OPACITY)
    (row, column), (height, width) = layer.cell(place), layer.feat_size
    corners = [column / width, row / height, (column + 1) / width, (row + 1) / height]
    x0, y0, x1, y1 = (round(corner * PANEL_SIDE) for corner in corners)
    ImageDraw.Draw(panel).rectangle((x0 - 1, y0 - 1, x1, y1), outline="lime", width=2)
    return panel
