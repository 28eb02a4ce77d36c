"""Generated scenes for detection and segmentation: several shapes on clutter, some behind others, some in crowds.

Lengths are relative to the shorter side.
"""

from dataclasses import dataclass, replace

import numpy as np

from soft_vit.data.demo.drawing import CLASSES, Picture

_FAMILY, _SEVERAL_FAMILY = 1, 8
_EMPTY_SHARE = 0.05
_CROWD_SHARE = 0.1
_MAX_SHAPES = 6
_RADII = (0.08, 0.22)
_CROWD_RADII = (0.03, 0.05)
# Share of a shape that stays visible.
_MIN_SEEN = 0.6
_TRIES = 30


@dataclass(frozen=True)
class Instance:
    """A shape, or a crowd of shapes of one class.

    label: index into CLASSES. mask: bool `[H, W]`, its visible pixels. contours: its outlines, each `[P, 2]` of (x, y)
    in pixels, or None if it is partly hidden.
    """

    label: int
    mask: np.ndarray
    contours: list[np.ndarray] | None
    crowd: bool = False

    def behind(self, hidden: np.ndarray) -> "Instance":
        """Return the instance without the pixels, bool `[H, W]`, that something hides."""
        return replace(self, mask=self.mask & ~hidden, contours=None) if (self.mask & hidden).any() else self


@dataclass(frozen=True)
class Scene:
    """image: uint8 `[H, W, 3]`, RGB. instances: from back to front."""

    image: np.ndarray
    instances: list[Instance]

    @property
    def label_map(self) -> np.ndarray:
        """Label map, uint8 `[H, W]`: 0 for a crowd, 1 for background, 2 + label for a shape."""
        labels = np.ones(self.image.shape[:2], dtype=np.uint8)
        for instance in self.instances:
            labels[instance.mask] = 0 if instance.crowd else 2 + instance.label
        return labels


def draw_scene(seed: int, index: int, size: int | tuple[int, int] = 256) -> Scene:
    """Draw a scene of up to six shapes, sometimes with a crowd of small ones; see `Picture` for the arguments."""
    picture = Picture(seed, index, size, _FAMILY)
    drawn: list[Instance] = []
    if picture.uniform() >= _EMPTY_SHARE:
        if picture.uniform() < _CROWD_SHARE:
            drawn.append(_paint_crowd(picture))
        for _ in range(picture.integer(1, _MAX_SHAPES)):
            _add_shape(picture, drawn)
    hidden = picture.cross_with_lines()
    instances = [instance.behind(hidden) for instance in drawn]
    return Scene(picture.finish(), [instance for instance in instances if instance.mask.any()])


def draw_several(seed: int, index: int, size: int | tuple[int, int] = 96) -> tuple[np.ndarray, list[int]]:
    """Draw one to three shapes of different classes, each in a quarter of the image.

    Returns the image, uint8 `[H, W, 3]`, and the sorted classes, indices into CLASSES. See `Picture` for the arguments.
    """
    picture = Picture(seed, index, size, _SEVERAL_FAMILY)
    labels = picture.rng.permutation(len(CLASSES))[: picture.integer(1, 3)].tolist()
    for label, place in zip(labels, picture.rng.permutation(4), strict=False):
        radius = picture.uniform(0.17, 0.24) * picture.side
        row, column = divmod(int(place), 2)
        halves = (column, picture.width / 2), (row, picture.height / 2)
        cx, cy = (picture.uniform(start * half + radius, (start + 1) * half - radius) for start, half in halves)
        picture.paint_shape(label, radius, cx, cy)
    picture.cross_with_lines()
    return picture.finish(), sorted(labels)


def _add_shape(picture: Picture, drawn: list[Instance]) -> None:
    """Paint a shape that leaves every earlier one visible, if a few tries find a position for it."""
    for _ in range(_TRIES):
        label, radius = picture.integer(0, len(CLASSES) - 1), picture.uniform(*_RADII) * picture.side
        cx, cy = (picture.uniform(radius, length - radius) for length in (picture.width, picture.height))
        y, x = np.ogrid[: picture.height, : picture.width]
        disc = np.hypot(x + 0.5 - cx, y + 0.5 - cy) <= radius
        if all((instance.mask & disc).sum() <= (1 - _MIN_SEEN) * instance.mask.sum() for instance in drawn):
            mask, contours = picture.paint_shape(label, radius, cx, cy)
            drawn[:] = [*(instance.behind(mask) for instance in drawn), Instance(label, mask, contours)]
            return


def _paint_crowd(picture: Picture) -> Instance:
    """Paint many small shapes of one class in one place."""
    label, reach = picture.integer(0, len(CLASSES) - 1), 0.2 * picture.side
    x, y = (picture.uniform(reach, length - reach) for length in (picture.width, picture.height))
    seen = np.zeros((picture.height, picture.width), dtype=bool)
    for _ in range(picture.integer(10, 16)):
        radius = picture.uniform(*_CROWD_RADII) * picture.side
        cx, cy = (center + picture.uniform(radius - reach, reach - radius) for center in (x, y))
        seen |= picture.paint_shape(label, radius, cx, cy)[0]
    return Instance(label, seen, None, crowd=True)
