"""Predictions drawn on their picture: bars of classes, boxes with masks, maps with a legend.

Pictures are RGB images of Pillow or uint8 `[H, W, 3]`; what is returned is an image of Pillow. A small picture is
enlarged by a whole factor, and lines and letters grow with the picture, so that both can be read.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps

from soft_vit.prediction.class_colors import class_colors, text_color

__all__ = ["draw_classes", "draw_instances", "draw_segmentation", "index_image"]

# Pixels of the longer side below which a picture is enlarged, and the smallest letters.
SMALL_PICTURE = 384
SMALL_LETTERS = 13
PAPER, INK, FAINT, BAR = (255, 255, 255), (30, 30, 30), (225, 225, 225), (0, 114, 178)
# Share of a mask's colour in its pixels, and of the grey in a picture whose colours would change those of a map.
OPACITY, GREY = 0.5, 0.75
# A palette of PNG has no more entries.
PALETTE = 256


# Left, top, right, bottom.
Rectangle = tuple[float, float, float, float]


class Style(NamedTuple):
    """Sizes that go with a picture, in pixels."""

    font: ImageFont.FreeTypeFont
    letters: int
    line: int
    pad: int


def draw_classes(image: Image.Image | np.ndarray, names: Sequence[str], scores: Sequence[float]) -> Image.Image:
    """The picture above a bar for each class, in the order given. scores: in [0, 1]."""
    picture, _ = _enlarged(image)
    style = _style(picture)
    row = round(1.6 * style.letters)
    width = max(picture.width, 22 * style.letters)
    panel = Image.new("RGB", (width, row * len(names) + 2 * style.pad), PAPER)
    draw = ImageDraw.Draw(panel)
    number = draw.textlength("100.0 %", font=style.font)
    left = min(max((draw.textlength(name, font=style.font) for name in names), default=0) + 2 * style.pad, 0.55 * width)
    right = width - number - 2 * style.pad
    for place, (name, score) in enumerate(zip(names, scores, strict=True)):
        top, bottom = style.pad + place * row + style.pad // 2, style.pad + (place + 1) * row - style.pad // 2
        middle = (top + bottom) / 2
        text = _shortened(name, style.font, left - 2 * style.pad)
        draw.text((style.pad, middle), text, INK, font=style.font, anchor="lm")
        draw.rectangle((left, top, right, bottom), FAINT)
        if score > 0:
            draw.rectangle((left, top, left + min(score, 1) * (right - left), bottom), BAR)
        draw.text((width - style.pad, middle), f"{100 * score:.1f} %", INK, font=style.font, anchor="rm")
    return _joined(picture, panel, below=True)


def draw_instances(
    image: Image.Image | np.ndarray,
    boxes: np.ndarray,
    labels: Sequence[int],
    names: Sequence[str],
    scores: Sequence[float] | None = None,
    masks: np.ndarray | None = None,
) -> Image.Image:
    """The picture with a box, a name and perhaps a half transparent mask for each instance.

    boxes: `[n, 4]`, x0 y0 x1 y1 in pixels of the picture. labels: indices of classes, which choose the colours. names,
    scores: of the instances. masks: bool `[n, H, W]`.
    """
    picture, factor = _enlarged(image)
    style = _style(picture)
    labels = np.asarray(labels, dtype=np.int64)
    colors = class_colors(int(labels.max(initial=-1)) + 1)[labels]
    if masks is not None and len(masks):
        picture = _with_masks(picture, np.asarray(masks, dtype=bool), colors, factor, style.line)
    draw = ImageDraw.Draw(picture)
    boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4) * factor
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for index in np.argsort(-areas, kind="stable"):
        _outline(draw, boxes[index], tuple(map(int, colors[index])), style.line, picture.size)
    labelled: list[tuple[Rectangle, str, np.ndarray]] = []
    # The most certain ones choose their places first, and lie on top.
    for index in np.argsort(-np.asarray(scores if scores is not None else -areas), kind="stable"):
        text = str(names[index]) if scores is None else f"{names[index]} {scores[index]:.2f}"
        text = _shortened(text, style.font, picture.width - 2 * style.pad)
        place = _label_place(text, boxes[index], style, picture.size, [other for other, _, _ in labelled])
        labelled.append((place, text, colors[index]))
    for place, text, color in reversed(labelled):
        draw.rectangle(place, tuple(map(int, color)))
        middle = (place[1] + place[3]) / 2
        draw.text((place[0] + style.pad, middle), text, text_color(color), font=style.font, anchor="lm")
    return picture


def draw_segmentation(
    image: Image.Image | np.ndarray, classes: np.ndarray, names: Sequence[str], opacity: float = OPACITY
) -> Image.Image:
    """The picture under the colours of its classes, with a legend beside it: colour, name and share of the pixels.

    classes: the class of each pixel, int `[H, W]`, from 0. names: of all classes. The picture's own colours are faint,
    or the map's would not be those of the legend.
    """
    picture, _ = _enlarged(image)
    style = _style(picture)
    colors = class_colors(max(len(names), int(classes.max(initial=0)) + 1))
    painted = Image.fromarray(colors[classes]).resize(picture.size, Image.Resampling.NEAREST)
    picture = Image.blend(ImageEnhance.Color(picture).enhance(1 - GREY), painted, opacity)
    counts = np.bincount(classes.ravel(), minlength=len(names))
    present = sorted(np.flatnonzero(counts), key=lambda index: (-counts[index], index))
    rows = [(colors[index], names[index], counts[index] / classes.size) for index in present]
    return _joined(picture, _legend(rows, picture.height, style), below=False)


def index_image(classes: np.ndarray) -> Image.Image:
    """A map of class indices, int `[H, W]`, as an image to be written as PNG.

    Up to 256 classes are indices of a palette with the colours that `draw_segmentation` uses; more become 16 bits.
    """
    if int(classes.max(initial=0)) >= PALETTE:
        return Image.fromarray(classes.astype(np.uint16))
    found = Image.fromarray(classes.astype(np.uint8))
    found.putpalette(class_colors(PALETTE).tobytes())
    return found


def _enlarged(image: Image.Image | np.ndarray) -> tuple[Image.Image, int]:
    """A copy of the picture, and by which whole factor it is larger."""
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    picture = picture.convert("RGB")
    factor = max(1, math.ceil(SMALL_PICTURE / max(picture.size)))
    size = (picture.width * factor, picture.height * factor)
    return (picture.resize(size, Image.Resampling.BICUBIC) if factor > 1 else picture.copy()), factor


def _style(picture: Image.Image) -> Style:
    letters = max(SMALL_LETTERS, round(math.sqrt(picture.width * picture.height) / 45))
    return Style(ImageFont.load_default(letters), letters, max(2, round(letters / 7)), max(3, round(letters / 3)))


def _shortened(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    """The text on one line, its end left out where it is wider than so many pixels."""
    text = " ".join(text.split())
    if font.getlength(text) <= width:
        return text
    kept = len(text)
    while kept > 1 and font.getlength(text[:kept].rstrip(" ,") + "...") > width:
        kept -= 1
    return text[:kept].rstrip(" ,") + "..."


def _joined(picture: Image.Image, panel: Image.Image, below: bool) -> Image.Image:
    """Picture and panel on paper, one below the other or side by side."""
    if below:
        width = max(picture.width, panel.width)
        sheet = Image.new("RGB", (width, picture.height + panel.height), PAPER)
        sheet.paste(picture, ((width - picture.width) // 2, 0))
        sheet.paste(panel, (0, picture.height))
    else:
        sheet = Image.new("RGB", (picture.width + panel.width, max(picture.height, panel.height)), PAPER)
        sheet.paste(picture, (0, 0))
        sheet.paste(panel, (picture.width, 0))
    return sheet


def _legend(rows: Sequence[tuple[np.ndarray, str, float]], height: int, style: Style) -> Image.Image:
    """A line for each row of colour, name and share, in as many columns as the height asks for."""
    line = round(1.6 * style.letters)
    per_column = max(1, (height - 2 * style.pad) // line)
    columns = max(1, min(math.ceil(len(rows) / per_column), 4))
    per_column = math.ceil(len(rows) / columns)
    names = [_shortened(str(name), style.font, 14 * style.letters) for _, name, _ in rows]
    swatch = style.letters
    number = style.font.getlength("100.0 %")
    text = max(map(style.font.getlength, names), default=0)
    width = round(swatch + style.pad + text + 2 * style.pad + number + 3 * style.pad)
    panel = Image.new("RGB", (columns * width + style.pad, per_column * line + 2 * style.pad), PAPER)
    draw = ImageDraw.Draw(panel)
    for place, ((color, _, share), name) in enumerate(zip(rows, names, strict=True)):
        column, row = divmod(place, per_column)
        left, middle = 2 * style.pad + column * width, style.pad + (row + 0.5) * line
        draw.rectangle((left, middle - swatch / 2, left + swatch, middle + swatch / 2), tuple(map(int, color)), INK)
        draw.text((left + swatch + style.pad, middle), name, INK, font=style.font, anchor="lm")
        right = left + width - 3 * style.pad
        draw.text((right, middle), f"{100 * share:.1f} %", INK, font=style.font, anchor="rm")
    return panel


def _with_masks(picture: Image.Image, masks: np.ndarray, colors: np.ndarray, factor: int, line: int) -> Image.Image:
    """Each mask in its colour, smaller ones over larger ones, with an outline that is not transparent."""
    paint, share = Image.new("RGB", picture.size), Image.new("L", picture.size)
    for index in np.argsort(-masks.sum((1, 2)), kind="stable"):
        rows, columns = masks[index].any(1).nonzero()[0], masks[index].any(0).nonzero()[0]
        if not len(rows):
            continue
        corner = (int(columns[0]) * factor, int(rows[0]) * factor)
        inside = Image.fromarray(masks[index][rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]).convert("L")
        inside = inside.resize((inside.width * factor, inside.height * factor), Image.Resampling.NEAREST)
        # Where a mean around it stays white a pixel lies within; beyond its own box nothing is white.
        within = ImageOps.expand(inside, line).filter(ImageFilter.BoxBlur(min(line // 2, 10)))
        within = ImageOps.crop(within, line).point(lambda value: 255 * (value == 255))
        paint.paste(tuple(map(int, colors[index])), corner, inside)
        share.paste(255, corner, inside)
        share.paste(round(255 * OPACITY), corner, within)
    return Image.composite(paint, picture, share)


def _outline(
    draw: ImageDraw.ImageDraw, box: np.ndarray, color: tuple[int, ...], line: int, size: tuple[int, int]
) -> None:
    """A box cut off at the picture's edge, with a dark rim; one without an area is a dot or a line."""
    left, right = (float(value) for value in np.sort(box[[0, 2]]).clip(0, size[0] - 1))
    top, bottom = (float(value) for value in np.sort(box[[1, 3]]).clip(0, size[1] - 1))
    right, bottom = max(right, left + 1), max(bottom, top + 1)
    draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=INK, width=line + 2)
    draw.rectangle((left, top, right, bottom), outline=color, width=line)


def _label_place(
    text: str, box: np.ndarray, style: Style, size: tuple[int, int], taken: Sequence[Rectangle]
) -> Rectangle:
    """Where a name goes at its box, inside the picture: where it covers the least of the names that have a place."""
    width = style.font.getlength(text) + 2 * style.pad
    height = round(1.35 * style.letters)
    x0, y0, x1, y1 = box
    corners = [(x0, y0 - height), (x0, y0), (x0, y1), (x1 - width, y0 - height), (x1 - width, y0), (x0, y1 - height)]
    found: list[tuple[float, Rectangle]] = []
    for x, y in corners:
        left, top = min(max(x, 0), max(size[0] - width, 0)), min(max(y, 0), max(size[1] - height, 0))
        place = (left, top, left + width, top + height)
        # Between places that are alike, the one that the edge of the picture did not push away from its box.
        pushed = abs(left - x) + abs(top - y)
        found.append((sum(_overlap(place, other) for other in taken) + 0.01 * pushed * height, place))
    return min(found, key=lambda pair: pair[0])[1]


def _overlap(first: Rectangle, second: Rectangle) -> float:
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return max(width, 0.0) * max(height, 0.0)
