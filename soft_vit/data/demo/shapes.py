"""Generated images on clutter, one shape or several tiles: data sets without files or downloads.

An image depends on (seed, index, size) only. A shape is recognised from its own pixels, the right tile only from
another one at a distance.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from soft_vit.data.demo.drawing import CLASSES, Picture, tight_box
from soft_vit.ops.numerics import check_choice

SPLITS = {"train": 0, "val": 1 << 32, "test": 2 << 32}
"""The first index of each split."""

# Colours of tiles: far from one another and from the dull colours of the clutter.
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
TILES_FAMILY = 7


@dataclass(frozen=True)
class ShapeSample:
    """One drawn image.

    image: uint8 `[H, W, 3]`, RGB. label: index into the scene's classes. box: float32 `[4]`, the tight box of the
    visible pixels of the shape, or of the tile to find, as (x0, y0, x1, y1) in pixels, x1 and y1 exclusive.
    """

    image: np.ndarray
    label: int
    box: np.ndarray


def draw_shape(seed: int, index: int, size: int | tuple[int, int] = 64) -> ShapeSample:
    """Draw one image; see `Picture` for the arguments.

    The class is `index % 10`, which balances consecutive indices.
    """
    picture, label = Picture(seed, index, size), index % len(CLASSES)
    radius = picture.uniform(0.28, 0.44) * picture.side
    cx, cy = (picture.uniform(radius, length - radius) for length in (picture.width, picture.height))
    mask, _ = picture.paint_shape(label, radius, cx, cy)
    mask &= ~picture.cross_with_lines()
    return ShapeSample(picture.finish(), label, np.array(tight_box(mask), np.float32))


def draw_tiles(seed: int, index: int, size: int | tuple[int, int] = 64) -> ShapeSample:
    """Draw one image: tiles with a left and a right colour, and among them a cue, whose right half is white.

    The label is the right colour, an index into COLORS, of the tile with the cue's left colour; it is `index % 6`. All
    left colours differ, and so do all right ones. Arguments as in `draw_shape`.
    """
    picture, label = Picture(seed, index, size, TILES_FAMILY), index % len(COLORS)
    others = [color for color in range(len(COLORS)) if color != label]
    places = picture.rng.permutation(CELLS * CELLS)[: NUM_TILES + 1]
    left = picture.rng.permutation(len(COLORS))[:NUM_TILES]
    right = [label, *picture.rng.permutation(others)[: NUM_TILES - 1]]
    palette = np.array([*COLORS.values(), (1, 1, 1)], dtype=np.float32)
    boxes = []
    # The first tile is the one to find, and the cue comes last.
    for place, first, second in zip(places, [*left, left[0]], [*right, len(COLORS)], strict=True):
        row, column = divmod(int(place), CELLS)
        top, bottom = row * picture.height // CELLS, (row + 1) * picture.height // CELLS
        start, stop = column * picture.width // CELLS, (column + 1) * picture.width // CELLS
        picture.fill_box((start, top, (start + stop) // 2, bottom), palette[first])
        picture.fill_box(((start + stop) // 2, top, stop, bottom), palette[second])
        boxes.append((start, top, stop, bottom))
    return ShapeSample(picture.finish(), label, np.array(boxes[0], np.float32))


SCENES: dict[str, tuple[Callable[..., ShapeSample], tuple[str, ...]]] = {
    "shape": (draw_shape, CLASSES),
    "tiles": (draw_tiles, tuple(COLORS)),
}
"""Scenes by name: the function that draws an image, and the names of the classes."""


class ShapeImages(Sequence):
    """A split of the data set as a sequence of ShapeSample.

    length: number of images, at most 2**32. split: a key of SPLITS; splits share no image. seed: of the data set. size:
    pixels, one number or (H, W). scene: `shape` or `tiles`, see `draw_shape` and `draw_tiles`.
    """

    def __init__(
        self, length: int, split: str = "train", seed: int = 0, size: int | tuple[int, int] = 64, scene: str = "shape"
    ) -> None:
        check_choice("scene", scene, tuple(SCENES))
        check_choice("split", split, tuple(SPLITS))
        self.length, self.split, self.seed, self.size = length, split, seed, size
        self.draw, self.classes = SCENES[scene]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> ShapeSample:
        # Raises IndexError at the end of an iteration.
        return self.draw(self.seed, SPLITS[self.split] + range(self.length)[position], self.size)

    def label(self, position: int) -> int:
        """Return the class of an image without drawing it."""
        return (SPLITS[self.split] + range(self.length)[position]) % len(self.classes)


def normalised_batch(
    samples: Iterable[ShapeSample], mean: float | Sequence[float], std: float | Sequence[float]
) -> torch.Tensor:
    """Return the normalised images of samples of one size, float32 `[B, 3, H, W]`.

    mean, std: of RGB values in [0, 1], one number or one for each channel.
    """
    pixels = torch.from_numpy(np.stack([sample.image for sample in samples])).permute(0, 3, 1, 2)
    mean, std = (torch.tensor(values).reshape(-1, 1, 1) for values in (mean, std))
    return (pixels / 255 - mean) / std
