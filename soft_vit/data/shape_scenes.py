"""Generated scenes for detection and segmentation: several shapes on clutter, some behind others, some in crowds.

A scene depends on (seed, index, size) only, as in `soft_vit.data.shapes`. Lengths are relative to the shorter side.
"""

from dataclasses import dataclass

import numpy as np

from soft_vit.data.shape_drawing import CLASSES, Canvas, Stream, blank_canvas, cross_with_lines, finish, paint_shape
from soft_vit.data.shapes import checked_size

__all__ = ["Instance", "Scene", "draw_scene"]

# Separates the random numbers from those of images of one shape.
_FAMILY = 1
_EMPTY_SHARE = 0.05
_CROWD_SHARE = 0.1
_MOST_SHAPES = 6
_RADII = (0.08, 0.22)
_CROWD_RADII = (0.03, 0.05)
# Least visible share of a shape.
_LEAST_SEEN = 0.6
_TRIES = 30


@dataclass(frozen=True)
class Instance:
    """A shape, or a crowd of shapes of one class.

    label: index into CLASSES. mask: bool `[H, W]`, its visible pixels. contours: its outlines, each float64 `[P, 2]` of
    (x, y) in pixels, or None if it is partly hidden.
    """

    label: int
    mask: np.ndarray
    contours: list[np.ndarray] | None
    crowd: bool = False


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
    """Draw a scene of up to six shapes, sometimes with a crowd of small ones.

    seed, index: 0 to 2**64 - 1. size: pixels, one number or (H, W), at least 16. Raises ValueError for other values.
    """
    height, width = checked_size(size)
    stream = Stream(seed, index, _FAMILY)
    canvas = blank_canvas(stream, height, width)
    drawn: list[Instance] = []
    if stream.uniform() >= _EMPTY_SHARE:
        if stream.uniform() < _CROWD_SHARE:
            drawn.append(_paint_crowd(stream, canvas))
        for _ in range(stream.integer(1, _MOST_SHAPES)):
            _add_shape(stream, canvas, drawn)
    hidden = cross_with_lines(stream, canvas)
    instances = [_behind(instance, hidden) for instance in drawn]
    return Scene(finish(stream, canvas), [instance for instance in instances if instance.mask.any()])


def _behind(instance: Instance, hidden: np.ndarray) -> Instance:
    """An instance without the pixels, bool `[H, W]`, that something hides."""
    if not (instance.mask & hidden).any():
        return instance
    return Instance(instance.label, instance.mask & ~hidden, None, instance.crowd)


def _add_shape(stream: Stream, canvas: Canvas, drawn: list[Instance]) -> None:
    """Paint a shape where every earlier one stays visible, if a few tries find such a place."""
    height, width = canvas.pixels.shape[:2]
    for _ in range(_TRIES):
        label = stream.integer(0, len(CLASSES) - 1)
        radius = stream.uniform(*_RADII) * canvas.side
        cx, cy = stream.uniform(radius, width - radius), stream.uniform(radius, height - radius)
        disc = (canvas.x * canvas.side - np.float32(cx)) ** 2 + (canvas.y * canvas.side - np.float32(cy)) ** 2
        disc = disc <= np.float32(radius) ** 2
        if any((instance.mask & disc).sum() > (1 - _LEAST_SEEN) * instance.mask.sum() for instance in drawn):
            continue
        mask, edges = paint_shape(stream, canvas, label, radius, cx, cy)
        drawn[:] = [_behind(instance, mask) for instance in drawn]
        drawn.append(Instance(label, mask, _contours(edges)))
        return


def _paint_crowd(stream: Stream, canvas: Canvas) -> Instance:
    """Many small shapes of one class in one place."""
    height, width = canvas.pixels.shape[:2]
    label = stream.integer(0, len(CLASSES) - 1)
    reach = 0.2 * canvas.side
    x, y = stream.uniform(reach, width - reach), stream.uniform(reach, height - reach)
    seen = np.zeros((height, width), dtype=bool)
    for _ in range(stream.integer(10, 16)):
        radius = stream.uniform(*_CROWD_RADII) * canvas.side
        free = reach - radius
        mask, _ = paint_shape(
            stream, canvas, label, radius, x + stream.uniform(-free, free), y + stream.uniform(-free, free)
        )
        seen |= mask
    return Instance(label, seen, None, crowd=True)


def _contours(edges: np.ndarray) -> list[np.ndarray]:
    """Closed outlines from a chain of edges `[E, 4]`; a break in the chain starts another outline."""
    breaks = np.flatnonzero((edges[1:, :2] != edges[:-1, 2:]).any(axis=1)) + 1
    return [part[:, :2] for part in np.split(edges, breaks)]
