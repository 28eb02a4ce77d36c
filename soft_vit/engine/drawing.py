"""Predictions and labels drawn on their images: classes and label maps with a panel below, boxes and masks in place.

Letters: n instances, H and W height and width of the image in pixels.
"""

import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image
from torchvision.utils import draw_bounding_boxes, draw_segmentation_masks

from soft_vit.data.label_maps import palette_of

# Images with a shorter longer side, in pixels, are enlarged so that lines and letters are readable.
SMALL_IMAGE = 384
# Images with a longer one are drawn smaller, by a whole factor.
LARGE_IMAGE = 4096
PAPER, INK, BAR = (255, 255, 255), (30, 30, 30), (0, 114, 178)
FONT = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
# Okabe and Ito, "Color Universal Design" (2008), without black: distinct for colour-blind readers.
_HEX = ["e69f00", "56b4e9", "009e73", "f0e442", "0072b2", "d55e00", "cc79a7"]
FIRST_COLORS = np.array([list(bytes.fromhex(code)) for code in _HEX])
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


def class_colors(count: int, names: Sequence[str] = ()) -> np.ndarray:
    """Return RGB colours of classes, uint8 `[count, 3]`; a class has the same colour at any count.

    names: of the classes; those of a data set in `soft_vit.data.label_maps` have its colours.
    """
    # Multiples of the golden ratio spread evenly for any count. Turbo's ends are too dark.
    places = 0.05 + 0.9 * (np.arange(count) * GOLDEN_RATIO % 1)
    colors = (255 * matplotlib.colormaps["turbo"](places)[:, :3]).round().astype(np.uint8)
    colors[: len(FIRST_COLORS)] = FIRST_COLORS[:count]
    if (palette := palette_of(names)) is not None:
        colors[: len(palette)] = palette
    return colors


def draw_classes(image: Image.Image, names: Sequence[str], scores: Sequence[float]) -> Image.Image:
    """Return the image above a panel with the name, score and bar of each class. scores: in [0, 1]."""
    return _with_panel(_resized(image)[0], [(BAR, name, score) for name, score in zip(names, scores, strict=True)])


def draw_instances(
    image: Image.Image,
    boxes: np.ndarray,
    labels: Sequence[int],
    names: Sequence[str],
    scores: Sequence[float] | None = None,
    masks: np.ndarray | None = None,
) -> Image.Image:
    """Return the image with a box, name and score for each instance, and half-transparent masks.

    boxes: `[n, 4]` as (x0, y0, x1, y1) in pixels. labels: class indices, which select colours. names: of the instances.
    scores: None for annotations. masks: bool `[n, H, W]`. Earlier instances are drawn over later ones, smaller masks
    over larger ones.
    """
    picture, factor = _resized(image)
    if not len(labels):
        return picture
    colors = [tuple(color) for color in class_colors(max(labels) + 1)[list(labels)].tolist()]
    captions = [_short(name) for name in names]
    if scores is not None:
        captions = [f"{name} {score:.2f}" for name, score in zip(captions, scores, strict=True)]
    pixels, font = pil_to_tensor(picture), _font(picture)
    if masks is not None:
        shown = _disjoint(torch.from_numpy(_fitted(masks, picture)))
        pixels = draw_segmentation_masks(pixels, shown, alpha=0.5, colors=colors)
    corners = (boxes.reshape(-1, 2, 2) * factor).clip(0, np.array(picture.size) - 1)
    boxes = torch.from_numpy(np.concatenate([corners.min(1), corners.max(1)], axis=1)).flip(0)
    # By the luma of ITU-R BT.601.
    inks = [PAPER if np.dot(color, (0.299, 0.587, 0.114)) < 128 else INK for color in colors[::-1]]
    look = dict(width=font.size // 6, font=str(FONT), font_size=font.size, fill_labels=True, label_colors=inks)
    return to_pil_image(draw_bounding_boxes(pixels, boxes, captions[::-1], colors[::-1], **look))


def draw_segmentation(image: Image.Image, classes: np.ndarray, names: Sequence[str]) -> Image.Image:
    """Return the image blended with its class colours, above a panel with the share of each class in the pixels.

    classes: class index of each pixel, int `[H, W]`; one that is not below the number of classes, such as 255, means
    unlabelled, and is black. names: of all classes, see `class_colors`.
    """
    picture, _ = _resized(image)
    colors = np.append(class_colors(len(names), names), np.zeros((1, 3), np.uint8), axis=0)
    painted = Image.fromarray(colors[np.minimum(_fitted(classes, picture), len(names))])
    shares = pixel_counts(classes, len(names)) / classes.size
    order = [index for index in np.argsort(-shares, kind="stable") if shares[index] > 0]
    rows = [(tuple(colors[index].tolist()), names[index], shares[index]) for index in order]
    return _with_panel(Image.blend(picture, painted, 0.5), rows)


def pixel_counts(classes: np.ndarray, count: int) -> np.ndarray:
    """Return the pixels of each of `count` classes, int64; a large image is counted in parts."""
    parts = np.array_split(classes, max(classes.size // 2**24, 1))
    return sum(np.bincount(part.ravel(), minlength=count)[:count] for part in parts)


def index_image(classes: np.ndarray, names: Sequence[str] = ()) -> Image.Image:
    """Return class indices, int `[H, W]`, as an image for PNG: with a palette up to 256 classes, else in 16 bits.

    names: of all classes, see `class_colors`.
    """
    if classes.max(initial=0) >= 256:
        return Image.fromarray(classes.astype(np.uint16))
    found = Image.fromarray(classes.astype(np.uint8))
    found.putpalette(class_colors(256, names).tobytes())
    return found


def _fitted(values: np.ndarray, picture: Image.Image) -> np.ndarray:
    """Return values `[..., H, W]` in the size of a picture, each that of the nearest pixel."""
    sizes = zip(values.shape[-2:], (picture.height, picture.width), strict=True)
    rows, columns = (np.arange(shown) * own // shown for own, shown in sizes)
    return values[..., rows[:, None], columns]


def _resized(image: Image.Image) -> tuple[Image.Image, float]:
    """Return an RGB copy of the image, by a whole factor larger or smaller where it is small or large; the factor."""
    divisor = max(1, math.ceil(max(image.size) / LARGE_IMAGE))
    factor = max(1, math.ceil(SMALL_IMAGE / max(image.size)))
    picture = image.reduce(divisor).convert("RGB")
    return picture.resize([side * factor for side in picture.size], Image.Resampling.BICUBIC), factor / divisor


def _font(picture: Image.Image) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(FONT, max(13, round(math.sqrt(picture.width * picture.height) / 45)))


def _short(name: str) -> str:
    return textwrap.shorten(name, 40, placeholder="...")


def _disjoint(masks: torch.Tensor) -> torch.Tensor:
    """Return masks `[n, H, W]` without overlap, which torchvision would draw black: the smallest mask owns a pixel."""
    owner = masks.new_full(masks.shape[1:], -1, dtype=torch.int64)
    for index in masks.sum((1, 2)).argsort(descending=True, stable=True).tolist():
        owner[masks[index]] = index
    return owner == torch.arange(len(masks))[:, None, None]


def _with_panel(picture: Image.Image, rows: Iterable[tuple[tuple[int, ...], str, float]]) -> Image.Image:
    """Return the picture above a row for each colour, name and share: its text over a bar as long as the share."""
    font = _font(picture)
    rows = [(color, f"{_short(name)}  {100 * share:.1f} %", share) for color, name, share in rows]
    pad, row = font.size // 2, 2 * font.size
    width = max([picture.width, *(math.ceil(font.getlength(text)) + 2 * pad for _, text, _ in rows)])
    sheet = Image.new("RGB", (width, picture.height + row * len(rows) + pad), PAPER)
    sheet.paste(picture, ((width - picture.width) // 2, 0))
    draw = ImageDraw.Draw(sheet)
    for place, (color, text, share) in enumerate(rows):
        bottom = picture.height + (place + 1) * row
        draw.text((pad, bottom - row / 4), text, INK, font=font, anchor="ls")
        # Long enough to show the colour of any share.
        draw.rectangle((pad, bottom - row / 8, pad + max(share * (width - 2 * pad), pad), bottom), color)
    return sheet
