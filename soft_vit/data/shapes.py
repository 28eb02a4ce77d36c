"""Generated images on clutter, one shape or several tiles: data sets without files or downloads.

An image depends on (seed, index, size) only, so it is the same in every process and run and on every machine; see
`soft_vit.data.shape_drawing`. A shape is told by its own pixels; which tile is meant, only by another one far away.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from soft_vit.data.shape_drawing import (
    CLASSES,
    Stream,
    blank_canvas,
    cross_with_lines,
    finish,
    paint_shape,
    tight_box,
)

SPLITS = {"train": 0, "val": 1 << 32, "test": 2 << 32}
"""The first index of each split."""
SPLIT_LENGTH = 1 << 32

MIN_SIZE = 16

# Of tiles: far from one another and from the dull colours of the clutter.
COLORS = {
    "red": (1, 0.1, 0.1),
    "green": (0.1, 0.9, 0.1),
    "blue": (0.15, 0.2, 1),
    "yellow": (1, 0.95, 0.05),
    "cyan": (0.05, 0.95, 0.95),
    "magenta": (1, 0.1, 0.95),
}
NUM_TILES = 3
# Cells of an image along each side.
CELLS = 4
# Random numbers of their own, see `Stream`.
TILES_FAMILY = 7


@dataclass(frozen=True)
class ShapeSample:
    """One drawn image.

    image: uint8 `[H, W, 3]`, RGB. label: index into the scene's classes. mask: bool `[H, W]`, the visible pixels of the
    shape, or the tile that is meant. box: float32 `[4]`, the tight box of the mask as (x0, y0, x1, y1) in pixels, x1
    and y1 exclusive.
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


def draw_tiles(seed: int, index: int, size: int | tuple[int, int] = 64) -> ShapeSample:
    """Draw one image: tiles with a left and a right colour, and among them a cue, whose right half is white.

    The label is the right colour, an index into COLORS, of the tile with the cue's left colour; it is `index % 6`. All
    left colours differ, and so do all right ones. Arguments and errors as in `draw_shape`.
    """
    height, width = checked_size(size)
    stream = Stream(seed, index, TILES_FAMILY)

    def choose(count: int, numbers: list[int]) -> list[int]:
        return [numbers.pop(stream.integer(0, len(numbers) - 1)) for _ in range(count)]

    label = index % len(COLORS)
    places = choose(NUM_TILES + 1, list(range(CELLS * CELLS)))
    left = choose(NUM_TILES, list(range(len(COLORS))))
    right = [label, *choose(NUM_TILES - 1, [color for color in range(len(COLORS)) if color != label])]
    palette = np.array([*COLORS.values(), (1, 1, 1)], dtype=np.float32)
    canvas = blank_canvas(stream, height, width)
    mask = np.zeros((height, width), dtype=bool)
    for number, place in enumerate(places):
        row, column = divmod(place, CELLS)
        rows = slice(row * height // CELLS, (row + 1) * height // CELLS)
        start, stop = column * width // CELLS, (column + 1) * width // CELLS
        is_cue = number == NUM_TILES
        canvas.pixels[rows, start : (start + stop) // 2] = palette[left[0 if is_cue else number]]
        canvas.pixels[rows, (start + stop) // 2 : stop] = palette[-1 if is_cue else right[number]]
        if number == 0:
            mask[rows, start:stop] = True
    box = np.array(tight_box(mask), dtype=np.float32)
    return ShapeSample(image=finish(stream, canvas), label=label, box=box, mask=mask)


SCENES: dict[str, tuple[Callable[..., ShapeSample], tuple[str, ...]]] = {
    "shape": (draw_shape, CLASSES),
    "tiles": (draw_tiles, tuple(COLORS)),
}
"""What an image shows: the function that draws it, and the names of its classes."""


class ShapeImages(Sequence):
    """A split of the data set as a sequence of ShapeSample.

    length: number of images, 1 to 2**32. split: a key of SPLITS; splits share no image. seed: of the data set. size:
    pixels, one number or (H, W). scene: `shape` or `tiles`, see `draw_shape` and `draw_tiles`. Raises ValueError for
    other values.
    """

    def __init__(
        self,
        length: int,
        split: str = "train",
        seed: int = 0,
        size: int | tuple[int, int] = 64,
        scene: str = "shape",
    ) -> None:
        if scene not in SCENES:
            raise ValueError(f"scene is {scene!r}; choose one of {', '.join(SCENES)}.")
        if split not in SPLITS:
            raise ValueError(f"split is {split!r}; choose one of {', '.join(SPLITS)}.")
        if not 0 < length <= SPLIT_LENGTH:
            raise ValueError(f"length is {length}; a split holds 1 to 2**32 images, so choose a length in that range.")
        checked_size(size)
        self.length, self.split, self.seed, self.size = length, split, seed, size
        self.draw, self.classes = SCENES[scene]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> ShapeSample:
        if not -self.length <= position < self.length:
            raise IndexError(f"position {position} lies outside the {self.length} images of this split.")
        return self.draw(self.seed, SPLITS[self.split] + position % self.length, self.size)

    def label(self, position: int) -> int:
        """The class of an image without drawing it."""
        return (SPLITS[self.split] + position % self.length) % len(self.classes)


def normalised_batch(
    samples: Iterable[ShapeSample], mean: float | Sequence[float], std: float | Sequence[float]
) -> torch.Tensor:
    """The normalised images of samples of one size, float32 `[B, 3, H, W]`.

    mean, std: of RGB values in [0, 1], one number or one for each channel.
    """
    pixels = torch.from_numpy(np.stack([sample.image for sample in samples])).permute(0, 3, 1, 2)
    mean, std = (torch.tensor(values).reshape(-1, 1, 1) for values in (mean, std))
    return (pixels / 255 - mean) / std
