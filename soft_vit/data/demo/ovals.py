"""Generated images of many shapes whose classes differ by aspect ratio alone: circles, and wide and tall ellipses."""

import math

import numpy as np
from PIL import Image, ImageDraw

OVALS = ("circle", "wide", "tall")
"""Names of the classes."""

# Drawn at this multiple of the size, for smooth edges.
_FINE = 4
# The longer axis over the shorter one, of an ellipse and at most of an image.
_RATIO, _MAX_ASPECT = 1.8, 3.0


def draw_oval(seed: int, index: int, pixels: int = 64 * 64) -> np.ndarray:
    """Return the image number index of a data set, uint8 `[H, W, 3]`, of class `index % 3`.

    H and W have a ratio from 1/3 to 3 and about that many pixels. Resized to a square, a circle of such an image looks
    like an ellipse.
    """
    rng = np.random.default_rng((seed, index))
    aspect = math.exp(rng.uniform(-1, 1) * math.log(_MAX_ASPECT))
    height, width = (max(16, round(math.sqrt(pixels) * factor)) for factor in (aspect**0.5, aspect**-0.5))
    stretch = (1.0, _RATIO**0.5, _RATIO**-0.5)[index % len(OVALS)]
    radius = rng.uniform(0.22, 0.36) * min(height, width)
    rx, ry = radius * stretch, radius / stretch
    x, y = rng.uniform(rx, width - rx), rng.uniform(ry, height - ry)
    light, dark = rng.uniform(150, 230, 3), rng.uniform(20, 110, 3)
    colors = (light, dark) if rng.random() < 0.5 else (dark, light)
    image = Image.new("RGB", (width * _FINE, height * _FINE), tuple(map(int, colors[0])))
    box = [round(_FINE * side) for side in (x - rx, y - ry, x + rx, y + ry)]
    ImageDraw.Draw(image).ellipse(box, fill=tuple(map(int, colors[1])))
    pixels_of = np.asarray(image.resize((width, height), Image.Resampling.BOX), dtype=np.float64)
    return (pixels_of + rng.normal(0, 12, pixels_of.shape)).clip(0, 255).astype(np.uint8)
