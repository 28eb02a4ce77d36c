"""Outlines, clutter and textures of generated images.

Letters: H, W image height and width in pixels; coordinates are x to the right, y down, pixel (i, j) covers
[j, j + 1) x [i, i + 1).
"""

import math

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ("circle", "triangle", "square", "star", "ring", "cross", "bar", "crescent", "heart", "arrow")
"""Names of the shapes."""

# Pictures are painted at this multiple of their size, for smooth edges.
_FINE = 4


def _arc(radius: float, start: float, stop: float, steps: int, center: float = 0.0) -> np.ndarray:
    """Return points `[steps, 2]` on a circle around (center, 0) from one angle to another, without the last."""
    angles = start + (stop - start) * np.arange(steps) / steps
    return np.stack([center + radius * np.cos(angles), radius * np.sin(angles)], axis=1)


def _crescent() -> np.ndarray:
    """Return the unit disc without a disc of radius 0.8 around (0.5, 0)."""
    radius, center = 0.8, 0.5
    x = (1 - radius**2 + center**2) / (2 * center)
    y = math.sqrt(1 - x**2)
    outer, inner = math.atan2(y, x), math.atan2(y, x - center)
    back = _arc(radius, 2 * math.pi - inner, inner, 28, center)
    return np.concatenate([_arc(1.0, outer, 2 * math.pi - outer, 36), back])


def _heart() -> np.ndarray:
    t = np.arange(40) * math.pi / 20
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([np.sin(t) ** 3, -y / 16 - 0.15], axis=1)


def _outlines() -> dict[str, list[np.ndarray]]:
    """Return the contours of each class inside the unit disc, each `[P, 2]`; a second one is a hole."""
    full, a = 2 * math.pi, 0.3
    star = _arc(1.0, 0, full, 10)
    star[1::2] *= 0.42
    cross = [(a, a), (a, 1), (-a, 1), (-a, a), (-1, a), (-1, -a), (-a, -a), (-a, -1), (a, -1), (a, -a), (1, -a), (1, a)]
    arrow = [(1.0, 0.0), (0.1, 0.75), (0.1, 0.28), (-1.0, 0.28), (-1.0, -0.28), (0.1, -0.28), (0.1, -0.75)]
    contours = {
        "circle": [_arc(1.0, 0, full, 48)],
        "triangle": [_arc(1.0, 0, full, 3)],
        "square": [_arc(1.0, 0, full, 4)],
        "star": [star],
        "ring": [_arc(1.0, 0, full, 48), _arc(0.55, full, 0, 36)],
        "cross": [np.array(cross)],
        "bar": [np.array([(1.0, 0.3), (-1.0, 0.3), (-1.0, -0.3), (1.0, -0.3)])],
        "crescent": [_crescent()],
        "heart": [_heart()],
        "arrow": [np.array(arrow)],
    }
    reach = {name: np.linalg.norm(parts[0], axis=1).max() for name, parts in contours.items()}
    return {name: [part / reach[name] for part in parts] for name, parts in contours.items()}


_OUTLINES = _outlines()


class Picture:
    """A picture to paint on, which begins as a background with lines and blobs.

    seed, index: 0 to 2**64 - 1; family: separates data sets of one seed. size: pixels, one number or (H, W). All
    square sizes show the same picture, with different noise. It is painted at four times its size.
    """

    def __init__(self, seed: int, index: int, size: int | tuple[int, int], family: int = 0) -> None:
        self.height, self.width = (size, size) if isinstance(size, int) else size
        self.side = min(self.height, self.width)
        # One integer: NumPy treats the lists [1] and [1, 0] alike.
        self.rng = np.random.default_rng((family << 128) | (seed << 64) | index)
        self.image = self._background()
        for _ in range(self.integer(1, 3)):
            self.fill(self._line(), self.dull_color())
        for _ in range(self.integer(2, 5)):
            self.fill(self._blob(), self.dull_color())

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        return float(self.rng.uniform(low, high))

    def integer(self, low: int, high: int) -> int:
        """Return a random number from low to high, both included."""
        return int(self.rng.integers(low, high, endpoint=True))

    def dull_color(self) -> np.ndarray:
        """Return RGB in [0.2, 0.8] for everything but the shape."""
        return self.rng.uniform(0.2, 0.8, 3)

    def vivid_color(self) -> np.ndarray:
        """Return RGB in [0, 1] with one high and one low channel."""
        return self.rng.permutation([self.uniform(0.85, 1), self.uniform(0, 0.15), self.uniform()])

    def _background(self) -> Image.Image:
        """Return a gradient between two colours with smooth noise."""
        first, second = self.dull_color(), self.dull_color()
        angle, cells, strength = self.uniform(0, 2 * math.pi), self.integer(2, 6), self.uniform(0.05, 0.15)
        places = np.linspace(-0.5, 0.5, cells + 1)
        ramp = np.clip(0.5 + math.sin(angle) * places[:, None] + math.cos(angle) * places, 0, 1)[..., None]
        grid = first + ramp * (second - first) + self.rng.uniform(-strength, strength, (cells + 1, cells + 1, 3))
        return _as_image(grid).resize((self.width * _FINE, self.height * _FINE), Image.Resampling.BILINEAR)

    def _line(self) -> np.ndarray:
        """Return the outline of a random straight line, `[4, 2]`."""
        angle, width = self.uniform(0, math.pi), 2 * self.uniform(0.006, 0.022) * self.side
        along = np.array([math.cos(angle), math.sin(angle)]) * (self.width + self.height)
        across = np.array([-math.sin(angle), math.cos(angle)]) * width / 2
        return self._point() + np.array([along + across, along - across, -along - across, across - along])

    def _blob(self) -> np.ndarray:
        """Return the outline of a small ellipse, clearly smaller than any shape, `[P, 2]`."""
        return self._point() + self.rng.uniform(0.02, 0.08, 2) * self.side * _arc(1.0, 0, 2 * math.pi, 32)

    def _point(self) -> np.ndarray:
        return self.rng.uniform(0, 1, 2) * (self.width, self.height)

    def fill(self, outline: np.ndarray, color: np.ndarray) -> None:
        """Fill an outline, `[P, 2]` of (x, y) in pixels, with RGB in [0, 1]."""
        _polygon(self.image, outline, tuple(_as_bytes(color).tolist()))

    def fill_box(self, box: tuple[int, int, int, int], color: np.ndarray) -> None:
        """Fill the whole pixels of (x0, y0, x1, y1) with RGB in [0, 1]."""
        self.image.paste(tuple(_as_bytes(color).tolist()), tuple(_FINE * side for side in box))

    def _inside(self, contours: list[np.ndarray]) -> Image.Image:
        """Return the inside of the first of some outlines without that of the others."""
        inside = Image.new("L", self.image.size)
        for number, contour in enumerate(contours):
            _polygon(inside, contour, 0 if number else 255)
        return inside

    def _texture(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return a pattern in the shape's frame, in [0, 1]; u, v in units of the shape's radius."""
        kind, period = self.integer(0, 4), self.uniform(0.3, 0.7)
        if kind < 2:
            return kind * np.clip(0.5 + 0.5 * u, 0, 1)
        a, b = u / period % 1, v / period % 1
        stripes, checks, dots = a < 0.5, (a < 0.5) != (b < 0.5), np.hypot(a - 0.5, b - 0.5) < 0.3
        return (stripes, checks, dots)[kind - 2]

    def paint_shape(self, label: int, radius: float, cx: float, cy: float) -> tuple[np.ndarray, list[np.ndarray]]:
        """Paint a shape of a class, randomly turned, in a contrasting colour; centre and radius are in pixels.

        Returns its pixels, bool `[H, W]`, and its outlines, each `[P, 2]` of (x, y) in pixels.
        """
        angle = self.uniform(0, 2 * math.pi)
        c, s = math.cos(angle), math.sin(angle)
        # The candidate farthest from the background.
        behind = np.array(self.image.getpixel((int(cx * _FINE), int(cy * _FINE)))) / 255
        color = max((self.vivid_color() for _ in range(4)), key=lambda candidate: np.abs(candidate - behind).sum())
        change = 0.35 * (self.dull_color() - color)
        outlines = [part @ np.array([(c, s), (-s, c)]) * radius + (cx, cy) for part in _OUTLINES[CLASSES[label]]]
        inside = self._inside(outlines)
        dx = (np.arange(self.width, dtype=np.float32) + 0.5 - cx) / radius
        dy = (np.arange(self.height, dtype=np.float32)[:, None] + 0.5 - cy) / radius
        pattern = self._texture(c * dx + s * dy, c * dy - s * dx)[..., None]
        painted = _as_image(color + pattern * change).resize(self.image.size, Image.Resampling.NEAREST)
        self.image.paste(painted, mask=inside)
        return _pixels(inside), outlines

    def cross_with_lines(self) -> np.ndarray:
        """Paint up to two lines in front; return the pixels that they hide, bool `[H, W]`."""
        hidden = np.zeros((self.height, self.width), dtype=bool)
        for _ in range(self.integer(0, 2)):
            line = self._line()
            self.fill(line, self.dull_color())
            hidden |= _pixels(self._inside([line]))
        return hidden

    def finish(self) -> np.ndarray:
        """Return the picture with noise on every pixel, uint8 `[H, W, 3]`."""
        pixels, strength = np.asarray(self.image.reduce(_FINE)) / 255, self.uniform(0.01, 0.06)
        return _as_bytes(pixels + self.rng.uniform(-strength, strength, pixels.shape))


def _polygon(image: Image.Image, outline: np.ndarray, fill: int | tuple[int, ...]) -> None:
    ImageDraw.Draw(image).polygon((outline * _FINE).flatten().tolist(), fill)


def _pixels(inside: Image.Image) -> np.ndarray:
    """Return the pixels that are covered by half or more, bool `[H, W]`."""
    return np.asarray(inside.reduce(_FINE)) >= 128


def _as_bytes(color: np.ndarray) -> np.ndarray:
    return (np.clip(color, 0, 1) * 255).round().astype(np.uint8)


def _as_image(colors: np.ndarray) -> Image.Image:
    return Image.fromarray(_as_bytes(colors))


def tight_box(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Return (x0, y0, x1, y1) in pixels, x1 and y1 exclusive, of a mask `[H, W]` that is not empty."""
    left, top, right, bottom = Image.fromarray(mask).getbbox()
    return left, top, right, bottom
