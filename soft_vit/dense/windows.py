"""Large images in overlapping windows: where they lie, how their scores are blended, and their boxes merged.

Letters: C classes, h and w height and width of a map, n rows and m columns of pixels; N boxes, T tiles.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

# Windows that a network sees at once.
_AT_ONCE = 4
# Boxes of two tiles with at least this overlap, in what both tiles see, are of one object.
_SAME_OBJECT = 0.5
# A box that ends so close to the border of its tile, as a share of the tile's side, may be cut by it.
_AT_BORDER = 0.03
# Of the sums of scores in a strip of rows.
_STRIP_BYTES = 2**27


class Window(NamedTuple):
    """A window of an image, in its pixels, and the scale at which a network sees it."""

    rows: slice
    columns: slice
    scale: float = 1.0

    @property
    def kind(self) -> tuple[float, ...]:
        """What windows of one batch share."""
        return self.scale, self.rows.stop - self.rows.start, self.columns.stop - self.columns.start


def windows_of(size: Sequence[int], sides: Sequence[int], steps: Sequence[int], scale: float = 1.0) -> list[Window]:
    """Return windows that cover an image, row by row; the last of each row and column ends at the image's border.

    size, sides, steps: (height, width) of the image, of the windows, and from one to the next. Windows that are larger
    than the image end with it.
    """
    ranges = []
    for length, side, step in zip(size, sides, steps, strict=True):
        last = max(length - side, 0)
        ranges.append([slice(i, min(i + side, length)) for i in sorted({*range(0, last, step), last})])
    return [Window(rows, columns, scale) for rows, columns in itertools.product(*ranges)]


def tiles_of(size: Sequence[int], side: int, overlap: float) -> np.ndarray:
    """Return the corners (x0, y0, x1, y1), `[T, 4]`, of square windows of an image (height, width).

    overlap: of neighbours, as a share of the side, from 0 to 1, without 1.
    """
    windows = windows_of(size, [side] * 2, [max(round(side * (1 - overlap)), 1)] * 2)
    return np.array([(x.start, y.start, x.stop, y.stop) for y, x, _ in windows])


def hann(place: Tensor, at_start: bool, at_end: bool) -> Tensor:
    """Return the weights sin^2(pi place) of places from 0, where a window begins, to 1, where it ends.

    at_start, at_end: that end is the image's border, towards which the weights stay 1.
    """
    return (torch.sin(torch.pi * place) ** 2).masked_fill(((place < 0.5) & at_start) | ((place > 0.5) & at_end), 1.0)


def resample(values: Tensor, axis: int, places: Tensor, mode: str) -> Tensor:
    """Return values at fractional places of an axis; at place i it is value i. Values continue beyond both ends.

    mode: "bilinear", or "bicubic" (Keys 1981, with the coefficient -0.75), both as in `F.interpolate`.
    """
    base = places.floor()
    t = places - base
    if mode == "bilinear":
        first, weights = 0, (1 - t, t)
    else:
        first, weights = -1, (_cubic_far(1 + t), _cubic_near(t), _cubic_near(1 - t), _cubic_far(2 - t))
    shape = [-1 if i == axis % values.ndim else 1 for i in range(values.ndim)]
    indices = [(base.long() + first + tap).clamp(0, values.shape[axis] - 1) for tap in range(len(weights))]
    taps = zip(indices, weights, strict=True)
    return sum(values.index_select(axis, index) * weight.view(shape).to(values.dtype) for index, weight in taps)


def _cubic_near(x: Tensor) -> Tensor:
    return (1.25 * x - 2.25) * x**2 + 1


def _cubic_far(x: Tensor) -> Tensor:
    return -0.75 * (((x - 5) * x + 8) * x - 4)


@dataclass(frozen=True)
class Patch:
    """Scores of a window as a network gives them.

    scores: `[C, h, w]`, of the window and of padding below and to the right of it. extent: rows and columns of `scores`
    that the window covers, with fractions. mode: see `resample`.
    """

    window: Window
    scores: Tensor
    extent: tuple[float, float]
    mode: str

    def mirrored(self, axes: Sequence[int]) -> Tensor:
        """Return the scores of a window that was mirrored along axes, mirrored back."""
        scores = self.scores
        for axis in axes:
            places = torch.arange(scores.shape[axis], dtype=torch.float64, device=scores.device)
            scores = resample(scores, axis, self.extent[axis] - 1 - places, self.mode)
        return scores

    def add_to(self, total: Tensor, y: Tensor, x: Tensor, size: Sequence[int]) -> None:
        """Add the weighted scores to sums `[C, n, m]` at pixels, in place.

        y, x: centres `[n]` and `[m]` of the pixels, rising, in pixels of the image. size: (height, width) of the image.
        """
        parts = []
        for centres, side, length, extent in zip((y, x), self.window[:2], size, self.extent, strict=True):
            inside = slice(*torch.searchsorted(centres, centres.new_tensor([side.start, side.stop])).tolist())
            place = (centres[inside] - side.start) / (side.stop - side.start)
            weight = hann(place, side.start == 0, side.stop == length)
            parts.append((inside, place * extent - 0.5, weight.to(total.dtype)))
        (rows, down, row_weight), (columns, right, column_weight) = parts
        if len(down) and len(right):
            # Columns first, of the rows of the map that these pixels need.
            low = max(int(down[0].floor()) - 1, 0)
            scores = resample(self.scores[:, low : int(down[-1].floor()) + 3], -1, right, self.mode) * column_weight
            total[:, rows, columns] += resample(scores, -2, down - low, self.mode) * row_weight[:, None]


def class_rows(
    windows: Sequence[Window],
    look: Callable[[Sequence[Window]], Sequence[Patch]],
    seen: Sequence[int],
    size: Sequence[int],
    count: int,
    *,
    first: int = 0,
    progress: bool = False,
    device: torch.device | str = "cpu",
) -> Iterator[Tensor]:
    """Yield the classes of the rows of an image, in strips `[n, W]` from row `first` on: those of the largest sums.

    windows: of an image of size `seen`, from top to bottom. look: returns the scores of at most four windows of one
    kind. size: (H, W) of the result. count: C. progress: show a bar. Classes are uint8, or int16 above 256.

    The sums exist for one strip at a time, and the scores of a window, in the network's resolution, until its last row.
    """
    pairs = zip(size, seen, strict=True)
    y, x = ((torch.arange(own, dtype=torch.float64, device=device) + 0.5) * (side / own) for own, side in pairs)
    waiting = [window for window in windows if first < size[0] and window.rows.stop > y[first]]
    live: list[Patch] = []
    height = max(_STRIP_BYTES // (4 * count * size[1]), 1)
    # None hides the bar where the output is not a terminal.
    hidden = None if progress and len(waiting) > 1 else True
    with tqdm(total=len(waiting), unit="window", leave=False, disable=hidden) as bar:
        for start in range(first, size[0], height):
            rows = y[start : start + height]
            live = [patch for patch in live if patch.window.rows.stop > rows[0]]
            while waiting and waiting[0].rows.start < rows[-1]:
                kind = waiting[0].kind
                group = [*itertools.takewhile(lambda one, kind=kind: one.kind == kind, waiting[:_AT_ONCE])]
                live += look(group)
                del waiting[: len(group)]
                bar.update(len(group))
            total = torch.zeros(count, len(rows), size[1], device=device)
            for patch in live:
                patch.add_to(total, rows, x, seen)
            yield total.argmax(0).to(torch.uint8 if count <= 256 else torch.int16)


def merge_boxes(
    tiles: np.ndarray, owners: np.ndarray, boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Return the indices of one box for each object, the highest score first.

    tiles: `[T, 4]` and boxes: `[N, 4]`, as (x0, y0, x1, y1) in pixels of the image. owners: tile of each box.

    As in NMS, a box is left out if a better one of its class is of the same object, by intersection over union. Only
    boxes of different tiles are compared, and only where both tiles see the image, so that a part of an object and the
    whole agree. A box that a border of its tile cuts comes after whole ones, and within another tile is left to that
    one.
    """
    low, high = tiles[:, :2], tiles[:, 2:]
    margin = _AT_BORDER * (high - low).max()
    # Corners inside of which nothing is cut; at the image's borders, everywhere.
    inner = np.hstack([np.where(low > 0, low + margin, -np.inf), np.where(high < high.max(0), high - margin, np.inf)])
    fits = (boxes[:, None, :2] >= inner[:, :2]).all(2) & (boxes[:, None, 2:] <= inner[:, 2:]).all(2)
    cut = ~fits[np.arange(len(boxes)), owners]
    order = np.lexsort((-scores, cut))
    order = order[~(cut & fits.any(1))[order]]
    first = np.ones(len(boxes), bool)
    for place, index in enumerate(order):
        others = order[:place]
        others = others[(labels[others] == labels[index]) & (owners[others] != owners[index])]
        common = _intersection(tiles[owners[index]], tiles[owners[others]])
        one, many = _intersection(boxes[index], common), _intersection(boxes[others], common)
        shared = _area(_intersection(one, many))
        both = _area(one) + _area(many) - shared
        first[index] = not ((shared > 0) & (shared >= _SAME_OBJECT * both)).any()
    kept = order[first[order]]
    return kept[np.argsort(-scores[kept], kind="stable")]


def _intersection(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.concatenate([np.maximum(a[..., :2], b[..., :2]), np.minimum(a[..., 2:], b[..., 2:])], axis=-1)


def _area(boxes: np.ndarray) -> np.ndarray:
    return (boxes[..., 2:] - boxes[..., :2]).clip(0).prod(-1)
