"""Generated images of coloured, textured shapes on clutter: a data set without files or downloads.

An image shows one shape, or several and a cue that says which of them is meant: a question that no part of the image
answers by itself. It depends on (seed, index, size) only, so it is the same in every process and run and on every
machine; see `soft_vit.data.shape_drawing`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from soft_vit.data.shape_drawing import (
    CLASSES,
    Stream,
    blank_canvas,
    cross_with_lines,
    finish,
    paint_disc,
    paint_shape,
    tight_box,
)

# The first index of each split.
SPLITS = {"train": 0, "val": 1 << 32, "test": 2 << 32}
SPLIT_LENGTH = 1 << 32

MIN_SIZE = 16

# Of cued scenes: colours far from one another and from the dull ones of the clutter, and places in 3 x 3 cells.
CUE_COLORS = ((1, 0.1, 0.1), (0.1, 0.9, 0.1), (0.15, 0.2, 1), (1, 0.95, 0.05), (0.05, 0.95, 0.95), (1, 0.1, 0.95))
CUED_SHAPES = 4
CELLS = 3
# Random numbers of their own, see `Stream`.
CUED_FAMILY = 7


@dataclass(frozen=True)
class ShapeSample:
    """One drawn image.

    image: uint8 `[H, W, 3]`, RGB. label: index into CLASSES. mask: bool `[H, W]`, the visible pixels of the shape. box:
    float32 `[4]`, the tight box of the mask as (x0, y0, x1, y1) in pixels, x1 and y1 exclusive.
    """

    image: np.ndarray
    label: int
    box: np.ndarray
    mask: np.ndarray


def checked_size(size: int | tuple[int, int]) -> tuple[int, int]:
    """(H, W). Raises ValueError for an image too small to show a shape."""
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < MIN_SIZE:
        raise ValueError(f"size is {size}; a shape needs at least {MIN_SIZE} pixels a side, so give a larger size.")
    return height, width


def draw_shape(seed: int, index: int, size: int | tuple[int, int] = 64) -> ShapeSample:
    """Draw one image.

    seed, index: 0 to 2**64 - 1; the class is `index % 10`, which balances consecutive indices. size: pixels, one number
    or (H, W), at least 16; all square sizes show the same scene, with different pixel noise. Raises ValueError for
    numbers outside these ranges.
    """
    height, width = checked_size(size)
    side = min(height, width)
    label = index % len(CLASSES)
    stream = Stream(seed, index)

    canvas = blank_canvas(stream, height, width)
    radius = stream.uniform(0.28, 0.44) * side
    cx, cy = stream.uniform(radius, width - radius), stream.uniform(radius, height - radius)
    mask, _ = paint_shape(stream, canvas, label, radius, cx, cy)
    mask &= ~cross_with_lines(stream, canvas)
    box = np.array(tight_box(mask), dtype=np.float32)
    return ShapeSample(image=finish(stream, canvas), label=label, box=box, mask=mask)


def draw_cued_shapes(seed: int, index: int, size: int | tuple[int, int] = 64) -> ShapeSample:
    """Draw one image: one to four shapes of different classes and colours, and a cue, a white disc around a colour.

    The label is the class of the shape in the cue's colour, and so are box and mask. Arguments and errors as in
    `draw_shape`.
    """
    height, width = checked_size(size)
    label = index % len(CLASSES)
    stream = Stream(seed, index, CUED_FAMILY)

    def choose(count: int, numbers: list[int]) -> list[int]:
        return [numbers.pop(stream.integer(0, len(numbers) - 1)) for _ in range(count)]

    canvas = blank_canvas(stream, height, width)
    count = stream.integer(1, CUED_SHAPES)
    places = choose(count + 1, list(range(CELLS * CELLS)))
    colors = choose(count, list(range(len(CUE_COLORS))))
    others = choose(count - 1, [other for other in range(len(CLASSES)) if other != label])
    cell = height / CELLS, width / CELLS
    radius = 0.5 * min(cell)
    centres = [((place % CELLS + 0.5) * cell[1], (place // CELLS + 0.5) * cell[0]) for place in places]
    masks = []
    for shape, color, (cx, cy) in zip([label, *others], colors, centres, strict=False):
        mask, _ = paint_shape(stream, canvas, shape, stream.uniform(0.8, 1.0) * radius, cx, cy, CUE_COLORS[color])
        masks.append(mask)
    cue = np.array(CUE_COLORS[colors[0]], dtype=np.float32)
    paint_disc(canvas, *centres[-1], 0.75 * radius, np.ones(3, dtype=np.float32))
    paint_disc(canvas, *centres[-1], 0.5 * radius, cue)
    box = np.array(tight_box(masks[0]), dtype=np.float32)
    return ShapeSample(image=finish(stream, canvas), label=label, box=box, mask=masks[0])


class ShapeImages(Sequence):
    """A split of the data set as a sequence of ShapeSample.

    length: number of images, 1 to 2**32. split: a key of SPLITS; splits share no image. seed: of the data set. size:
    pixels, one number or (H, W). cued: draw several shapes and a cue, see `draw_cued_shapes`. Raises ValueError for
    other values.
    """

    def __init__(
        self,
        length: int,
        split: str = "train",
        seed: int = 0,
        size: int | tuple[int, int] = 64,
        cued: bool = False,
    ) -> None:
        if split not in SPLITS:
            raise ValueError(f"split is {split!r}; choose one of {', '.join(SPLITS)}.")
        if not 0 < length <= SPLIT_LENGTH:
            raise ValueError(f"length is {length}; a split holds 1 to 2**32 images, so choose a length in that range.")
        checked_size(size)
        self.length, self.split, self.seed, self.size = length, split, seed, size
        self.draw = draw_cued_shapes if cued else draw_shape

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> ShapeSample:
        if not -self.length <= position < self.length:
            raise IndexError(f"position {position} lies outside the {self.length} images of this split.")
        return self.draw(self.seed, SPLITS[self.split] + position % self.length, self.size)

    def label(self, position: int) -> int:
        """The class of an image without drawing it."""
        return (SPLITS[self.split] + position % self.length) % len(CLASSES)


def normalised_batch(
    samples: Iterable[ShapeSample], mean: float | Sequence[float], std: float | Sequence[float]
) -> torch.Tensor:
    """The normalised images of samples of one size, float32 `[B, 3, H, W]`.

    mean, std: of RGB values in [0, 1], one number or one for each channel.
    """
    pixels = torch.from_numpy(np.stack([sample.image for sample in samples])).permute(0, 3, 1, 2)
    mean, std = (torch.tensor(values).reshape(-1, 1, 1) for values in (mean, std))
    return (pixels / 255 - mean) / std
