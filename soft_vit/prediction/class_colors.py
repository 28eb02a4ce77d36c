"""Colours of classes: fixed, and told apart by colour-blind readers as far as their number allows."""

from functools import lru_cache

import numpy as np

__all__ = ["class_colors", "text_color"]

# Okabe and Ito, "Color Universal Design" (2008), without black.
FIRST = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167))

# Linear RGB to what a protanope and a deuteranope see (Machado, Oliveira, Fernandes 2009, severity 1).
PROTAN = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))
DEUTAN = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))

# Linear RGB to cone responses, and their cube roots to Oklab (Ottosson 2020).
TO_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
TO_OKLAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)

# Levels of each channel that colours are chosen from, and how light they may be: neither ink nor paper.
LEVELS = 16
LIGHTNESS = (0.35, 0.92)


def class_colors(count: int) -> np.ndarray:
    """Colours of the classes 0 to count - 1, uint8 `[count, 3]`, RGB.

    A class keeps its colour whatever the number of classes. The first are those of Okabe and Ito; each further one is
    as far as can be from all before it, in Oklab, for the eye that sees the least of the difference. After some
    thousand they begin again.
    """
    order = _order(1 << max(count - 1, 0).bit_length())
    return order[np.arange(count) % len(order)]


@lru_cache
def _order(count: int) -> np.ndarray:
    steps = np.linspace(0, 255, LEVELS).round().astype(np.uint8)
    grid = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(-1, 3)
    lightness = _oklab(_linear(grid))[:, 0]
    grid = grid[(lightness > LIGHTNESS[0]) & (lightness < LIGHTNESS[1])]
    colors = np.concatenate([np.array(FIRST, dtype=np.uint8), grid])
    seen = _as_seen(colors)
    distance = np.full(len(colors), np.inf)
    chosen: list[int] = []
    for place in range(min(count, len(colors))):
        index = place if place < len(FIRST) else int(distance.argmax())
        chosen.append(index)
        distance = np.minimum(distance, np.linalg.norm(seen - seen[:, index, None], axis=-1).min(axis=0))
    return colors[chosen]


def _as_seen(colors: np.ndarray) -> np.ndarray:
    """Oklab of RGB colours `[n, 3]` for three eyes, `[3, n, 3]`: all cones, without the red, without the green ones."""
    linear = _linear(colors)
    eyes = [np.eye(3), np.array(PROTAN), np.array(DEUTAN)]
    return np.stack([_oklab((linear @ eye.T).clip(0, 1)) for eye in eyes])


def _linear(colors: np.ndarray) -> np.ndarray:
    """Linear RGB in [0, 1] of sRGB in [0, 255] (IEC 61966-2-1)."""
    values = np.asarray(colors) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def _oklab(linear: np.ndarray) -> np.ndarray:
    return np.cbrt(linear @ np.array(TO_CONES).T) @ np.array(TO_OKLAB).T


def text_color(color: np.ndarray) -> tuple[int, int, int]:
    """Black or white, whichever has more contrast with a background (relative luminance of WCAG 2)."""
    luminance = float(_linear(color) @ (0.2126, 0.7152, 0.0722))
    return (0, 0, 0) if (luminance + 0.05) ** 2 > 0.05 * 1.05 else (255, 255, 255)
