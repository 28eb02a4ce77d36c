"""Random numbers, outlines, clutter and textures of generated images, the same on every machine.

Random numbers come from the raw bits of PCG64, whose stream NumPy guarantees, unlike those of its distributions. Arrays
see only +, -, *, / and sqrt, which IEEE 754 fixes to the last bit, while NumPy's vectorised sine differs between
processors. The sines of scalar angles are rounded to nine digits.

Letters: H, W image height and width in pixels; coordinates are x to the right, y down, pixel (i, j) covers
[j, j + 1) x [i, i + 1).
"""

import math
from dataclasses import dataclass

import numpy as np

CLASSES = ("circle", "triangle", "square", "star", "ring", "cross", "bar", "crescent", "heart", "arrow")
"""The shapes that are drawn."""

# Sub-scanlines per pixel row; horizontally the coverage is exact.
_SCANLINES = 4

Contour = list[tuple[float, float]]


class Stream:
    """Uniform random numbers from raw bits.

    seed, index: 0 to 2**64 - 1, else ValueError. family: separates data sets of one seed.
    """

    def __init__(self, seed: int, index: int, family: int = 0) -> None:
        for name, value in (("seed", seed), ("index", index)):
            if not 0 <= value < 1 << 64:
                raise ValueError(f"{name} is {value}; choose one from 0 to 2**64 - 1.")
        # One integer, since SeedSequence makes the same of the lists [1] and [1, 0].
        self._bits = np.random.PCG64(np.random.SeedSequence((family << 128) | (seed << 64) | index))

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * ((self._bits.random_raw() >> 11) * 2.0**-53)

    def integer(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return low + int(self.uniform() * (high - low + 1))

    def dull_color(self) -> np.ndarray:
        """RGB in [0.2, 0.8], float32 `[3]`, for everything but the shape."""
        return np.array([self.uniform(0.2, 0.8) for _ in range(3)], dtype=np.float32)

    def vivid_color(self) -> np.ndarray:
        """RGB in [0, 1] with one high and one low channel, float32 [3]."""
        channels = [self.uniform(0.85, 1), self.uniform(0, 0.15), self.uniform()]
        first = channels.pop(self.integer(0, 2))
        second = channels.pop(self.integer(0, 1))
        return np.array([first, second, channels[0]], dtype=np.float32)

    def bytes(self, *shape: int) -> np.ndarray:
        """float32 of the given shape, values in [-1, 1]."""
        count = math.prod(shape)
        raw = self._bits.random_raw((count + 7) // 8).astype("<u8").view(np.uint8)[:count]
        return (raw.astype(np.float32) * np.float32(2 / 255) - 1).reshape(shape)


def _turn(angle: float) -> tuple[float, float]:
    """Cosine and sine, rounded to be the same in every mathematics library."""
    return round(math.cos(angle), 9), round(math.sin(angle), 9)


def _arc(radius: float, start: float, stop: float, steps: int, center: float = 0.0) -> Contour:
    """Points on a circle around (center, 0) from one angle to another, without the last."""
    angles = (start + (stop - start) * k / steps for k in range(steps))
    return [(center + radius * c, radius * s) for c, s in map(_turn, angles)]


def _crescent() -> Contour:
    """The unit disc without a disc of radius 0.8 around (0.5, 0)."""
    radius, center = 0.8, 0.5
    x = (1 - radius**2 + center**2) / (2 * center)
    y = math.sqrt(1 - x**2)
    outer, inner = math.atan2(y, x), math.atan2(y, x - center)
    return _arc(1.0, outer, 2 * math.pi - outer, 36) + _arc(radius, 2 * math.pi - inner, inner, 28, center)


def _heart() -> Contour:
    points = []
    for k in range(40):
        (c1, s1), (c2, _), (c3, _), (c4, _) = (_turn(m * math.pi * k / 20) for m in (1, 2, 3, 4))
        points.append((s1**3, -(13 * c1 - 5 * c2 - 2 * c3 - c4) / 16 - 0.15))
    return points


def _outlines() -> dict[str, np.ndarray]:
    """Edges of each class inside the unit disc, float64 [E, 4] as (x0, y0, x1, y1); a hole runs the other way round."""
    full = 2 * math.pi
    star = [(r * c, r * s) for k in range(10) for r in [1.0 if k % 2 == 0 else 0.42] for c, s in [_turn(full * k / 10)]]
    a = 0.3
    cross = [(a, a), (a, 1), (-a, 1), (-a, a), (-1, a), (-1, -a), (-a, -a), (-a, -1), (a, -1), (a, -a), (1, -a), (1, a)]
    arrow = [(1.0, 0.0), (0.1, 0.75), (0.1, 0.28), (-1.0, 0.28), (-1.0, -0.28), (0.1, -0.28), (0.1, -0.75)]
    contours: dict[str, list[Contour]] = {
        "circle": [_arc(1.0, 0, full, 48)],
        "triangle": [_arc(1.0, 0, full, 3)],
        "square": [_arc(1.0, 0, full, 4)],
        "star": [star],
        "ring": [_arc(1.0, 0, full, 48), _arc(0.55, full, 0, 36)],
        "cross": [cross],
        "bar": [[(1.0, 0.3), (-1.0, 0.3), (-1.0, -0.3), (1.0, -0.3)]],
        "crescent": [_crescent()],
        "heart": [_heart()],
        "arrow": [arrow],
    }
    outlines = {}
    for name, parts in contours.items():
        edges = np.concatenate([np.hstack([np.array(p), np.roll(np.array(p), -1, axis=0)]) for p in parts])
        reach = np.sqrt((edges[:, :2] ** 2).sum(axis=1).max())
        # Slightly inside the disc, so that rounding keeps corners inside the patch.
        outlines[name] = edges * (0.999 / reach)
    return outlines


_OUTLINES = _outlines()


def _coverage(edges: np.ndarray, width: int, height: int) -> np.ndarray:
    """Fraction of each pixel inside closed contours, by winding; float32 [height, width] in [0, 1].

    edges: [E, 4] in pixels, (x0, y0, x1, y1), x inside [0, width].
    """
    x0, y0, x1, y1 = edges.T
    rows = (np.arange(height * _SCANLINES) + 0.5) / _SCANLINES
    crosses = (y0[:, None] <= rows) != (y1[:, None] <= rows)
    edge, row = np.nonzero(crosses)
    slope = (x1[edge] - x0[edge]) / (y1[edge] - y0[edge])
    x = x0[edge] + (rows[row] - y0[edge]) * slope
    column = np.floor(x).astype(np.int64)
    # A crossing fills or clears the part of its pixel to its right, and all further pixels.
    sign = np.where(y1[edge] > y0[edge], 1.0, -1.0) / _SCANLINES
    right = sign * (column + 1 - x)
    cell = row // _SCANLINES * (width + 2) + column
    steps = np.bincount(
        np.concatenate([cell, cell + 1]),
        weights=np.concatenate([right, sign - right]),
        minlength=height * (width + 2),
    )
    filled = np.cumsum(steps.reshape(height, width + 2), axis=1)[:, :width]
    return np.minimum(np.abs(filled), 1.0).astype(np.float32)


def _paint(canvas: np.ndarray, alpha: np.ndarray, color: np.ndarray) -> None:
    """Blend a color ([3] or [H, W, 3]) over a canvas [H, W, 3] in place; alpha is [H, W] in [0, 1]."""
    canvas += alpha[..., None] * (color - canvas)


def _smooth_field(grid: np.ndarray, height: int, width: int) -> np.ndarray:
    """Linear interpolation of a coarse grid [h, w, 3] over the whole image, float32 [height, width, 3]."""
    for axis, length in enumerate((height, width)):
        cells = grid.shape[axis] - 1
        position = (np.arange(length, dtype=np.float32) + np.float32(0.5)) * np.float32(cells / length)
        below = position.astype(np.int64)
        part = (position - below.astype(np.float32)).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        low, high = np.take(grid, below, axis), np.take(grid, below + 1, axis)
        grid = low + (high - low) * part
    return grid


def _background(stream: Stream, height: int, width: int) -> np.ndarray:
    """A gradient between two colors with smooth noise, float32 [height, width, 3]."""
    first, second = stream.dull_color(), stream.dull_color()
    c, s = _turn(stream.uniform(0, 2 * math.pi))
    cells = stream.integer(2, 6)
    strength = np.float32(stream.uniform(0.05, 0.15))
    rows = np.arange(cells + 1, dtype=np.float32)[:, None, None] / cells - np.float32(0.5)
    ramp = np.clip(np.float32(0.5) + np.float32(s) * rows + np.float32(c) * rows.reshape(1, -1, 1), 0, 1)
    grid = first + ramp * (second - first) + strength * stream.bytes(cells + 1, cells + 1, 3)
    return _smooth_field(grid, height, width)


def _line_alpha(stream: Stream, x: np.ndarray, y: np.ndarray, side: int) -> np.ndarray:
    """Coverage of a random straight line across the image; x is [1, W], y is [H, 1], in units of the shorter side."""
    c, s = _turn(stream.uniform(0, math.pi))
    px, py = stream.uniform(0, float(x[0, -1])), stream.uniform(0, float(y[-1, 0]))
    thickness = stream.uniform(0.006, 0.022)
    distance = np.abs((x - np.float32(px)) * np.float32(c) + (y - np.float32(py)) * np.float32(s))
    return np.clip((np.float32(thickness) - distance) * np.float32(side) + np.float32(0.5), 0, 1)


def _blob_alpha(stream: Stream, x: np.ndarray, y: np.ndarray, side: int) -> np.ndarray:
    """Coverage of a small ellipse, clearly smaller than any shape."""
    px, py = stream.uniform(0, float(x[0, -1])), stream.uniform(0, float(y[-1, 0]))
    rx, ry = stream.uniform(0.02, 0.08), stream.uniform(0.02, 0.08)
    dx, dy = (x - np.float32(px)) / np.float32(rx), (y - np.float32(py)) / np.float32(ry)
    return np.clip((1 - np.sqrt(dx * dx + dy * dy)) * np.float32(min(rx, ry) * side) + np.float32(0.5), 0, 1)


def _texture(stream: Stream, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A pattern in the shape's frame, float32 `[h, w]` in [0, 1]; u, v in units of the shape's radius."""
    kind = stream.integer(0, 4)
    period = np.float32(stream.uniform(0.3, 0.7))
    if kind == 0:
        return np.zeros_like(u)
    if kind == 1:
        return np.clip(np.float32(0.5) + np.float32(0.5) * u, 0, 1)
    a, b = u / period, v / period
    a, b = a - np.floor(a), b - np.floor(b)
    half = np.float32(0.5)
    if kind == 2:
        return (a < half).astype(np.float32)
    if kind == 3:
        return ((a < half) != (b < half)).astype(np.float32)
    return ((a - half) * (a - half) + (b - half) * (b - half) < np.float32(0.09)).astype(np.float32)


@dataclass(frozen=True)
class Canvas:
    """A float32 picture [H, W, 3] to paint on, and the coordinates of its pixels' centres in units of the shorter side.

    x: [1, W]; y: [H, 1]; side: the shorter side in pixels.
    """

    pixels: np.ndarray
    x: np.ndarray
    y: np.ndarray
    side: int


def blank_canvas(stream: Stream, height: int, width: int) -> Canvas:
    """A background with lines and blobs."""
    side = min(height, width)
    pixels = _background(stream, height, width)
    x = (np.arange(width, dtype=np.float32)[None, :] + np.float32(0.5)) / np.float32(side)
    y = (np.arange(height, dtype=np.float32)[:, None] + np.float32(0.5)) / np.float32(side)
    for _ in range(stream.integer(1, 3)):
        _paint(pixels, _line_alpha(stream, x, y, side), stream.dull_color())
    for _ in range(stream.integer(2, 5)):
        _paint(pixels, _blob_alpha(stream, x, y, side), stream.dull_color())
    return Canvas(pixels, x, y, side)


def paint_shape(
    stream: Stream, canvas: Canvas, label: int, radius: float, cx: float, cy: float
) -> tuple[np.ndarray, np.ndarray]:
    """Paint a shape of a class, randomly turned, in a contrasting color; centre and radius are in pixels.

    Returns its pixels, bool `[H, W]`, and its edges, float64 `[E, 4]` as (x0, y0, x1, y1) in pixels.
    """
    height, width = canvas.pixels.shape[:2]
    c, s = _turn(stream.uniform(0, 2 * math.pi))
    left, top = max(int(cx - radius), 0), max(int(cy - radius), 0)
    right, bottom = min(int(cx + radius) + 1, width), min(int(cy + radius) + 1, height)
    patch = canvas.pixels[top:bottom, left:right]

    # The candidate farthest from the background.
    behind = canvas.pixels[int(cy), int(cx)]
    color = max((stream.vivid_color() for _ in range(4)), key=lambda candidate: float(np.abs(candidate - behind).sum()))
    other = np.float32(0.65) * color + np.float32(0.35) * stream.dull_color()

    dx = canvas.x[:, left:right] * canvas.side - np.float32(cx)
    dy = canvas.y[top:bottom] * canvas.side - np.float32(cy)
    inverse = np.float32(1 / radius)
    u, v = (np.float32(c) * dx + np.float32(s) * dy) * inverse, (np.float32(c) * dy - np.float32(s) * dx) * inverse
    pattern = _texture(stream, u, v)[..., None]

    corners = _OUTLINES[CLASSES[label]].reshape(-1, 2) * radius
    x_corners = corners[:, 0] * c - corners[:, 1] * s + (cx - left)
    y_corners = corners[:, 0] * s + corners[:, 1] * c + (cy - top)
    edges = np.stack([x_corners, y_corners], axis=1).reshape(-1, 4)
    alpha = _coverage(edges, right - left, bottom - top)
    _paint(patch, alpha, color + pattern * (other - color))

    mask = np.zeros((height, width), dtype=bool)
    mask[top:bottom, left:right] = alpha >= 0.5
    return mask, edges + np.array([left, top, left, top])


def cross_with_lines(stream: Stream, canvas: Canvas) -> np.ndarray:
    """Paint up to two lines in front; returns the pixels they hide, bool `[H, W]`."""
    hidden = np.zeros(canvas.pixels.shape[:2], dtype=bool)
    for _ in range(stream.integer(0, 2)):
        alpha = _line_alpha(stream, canvas.x, canvas.y, canvas.side)
        _paint(canvas.pixels, alpha, stream.dull_color())
        hidden |= alpha >= 0.5
    return hidden


def finish(stream: Stream, canvas: Canvas) -> np.ndarray:
    """The picture with noise on every pixel, uint8 [H, W, 3]."""
    pixels = canvas.pixels + np.float32(stream.uniform(0.01, 0.06)) * stream.bytes(*canvas.pixels.shape)
    return (np.clip(pixels, 0, 1) * 255 + np.float32(0.5)).astype(np.uint8)


def tight_box(mask: np.ndarray) -> tuple[int, int, int, int]:
    """(x0, y0, x1, y1) in pixels, x1 and y1 exclusive, of a mask [H, W] that is not empty."""
    ys, xs = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(xs[0]), int(ys[0]), int(xs[-1]) + 1, int(ys[-1]) + 1
