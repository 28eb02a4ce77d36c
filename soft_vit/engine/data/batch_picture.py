"""A batch as a picture: its images in a grid, each above its label."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

__all__ = ["batch_grid", "label_text"]

# Pixels below an image for its label, and the least side of an image that leaves room for one.
CAPTION, LEAST_SIDE = 14, 112
# A smaller share of a mixed target comes from label smoothing.
LEAST_SHARE = 0.05


def label_text(sample: Any, names: Sequence[str] | None) -> str:
    """The class of a sample, or the two of a mixed one with their shares: `ring 0.62 + bar 0.34`."""
    if "gt_score" not in sample:
        return _name(int(sample.gt_label), names)
    share, index = sample.gt_score.float().cpu().topk(min(2, len(sample.gt_score)))
    pairs = [(_name(i, names), s) for i, s in zip(index.tolist(), share.tolist(), strict=True) if s >= LEAST_SHARE]
    if len(pairs) == 1:
        return pairs[0][0]
    return " + ".join(f"{name} {s:.2f}" for name, s in pairs)


def _name(index: int, names: Sequence[str] | None) -> str:
    return str(names[index] if names else index)


def batch_grid(images: np.ndarray, labels: Sequence[str]) -> np.ndarray:
    """uint8 images `[B, H, W, 3]` in a grid about as wide as high, each above its label; uint8 `[H', W', 3]`."""
    count, height, width, _ = images.shape
    columns = math.ceil(math.sqrt(count))
    # Whole multiples show every pixel as it is.
    scale = max(1, math.ceil(LEAST_SIDE / width))
    cell = (width * scale + 2, height * scale + CAPTION + 2)
    grid = Image.new("RGB", (columns * cell[0], math.ceil(count / columns) * cell[1]), "white")
    draw = ImageDraw.Draw(grid)
    for place, (image, label) in enumerate(zip(images, labels, strict=True)):
        left, top = place % columns * cell[0] + 1, place // columns * cell[1] + 1
        shown = Image.fromarray(image).resize((width * scale, height * scale), Image.Resampling.NEAREST)
        grid.paste(shown, (left, top))
        while draw.textlength(label) > cell[0] - 2 and len(label) > 1:
            label = label[:-1]
        draw.text((left, top + height * scale + 1), label, fill="black")
    return np.asarray(grid)
