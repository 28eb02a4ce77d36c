"""Class scores of a whole image from a network that sees it whole or window by window.

Letters: C classes, H and W height and width of an image.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["resize_scores", "slide", "windows"]

# Windows that go through the network together.
_TOGETHER = 4

Network = Callable[[Tensor], Tensor]


def resize_scores(scores: Tensor, size: Sequence[int]) -> Tensor:
    """Scores `[B, C, h, w]` bilinearly to `[B, C, *size]`, in float32."""
    return F.interpolate(scores.float(), size=size, mode="bilinear", align_corners=False)


def windows(
    size: tuple[int, int], crop_size: tuple[int, int], stride: tuple[int, int]
) -> Iterator[tuple[slice, slice]]:
    """Windows that cover a map of a size (H, W), rows first; the last of each row and column ends at the border.

    A crop larger than the map is cut to it, so that all windows have one size.
    """
    sides = []
    for length, crop, step in zip(size, crop_size, stride, strict=True):
        last = max(length - crop, 0)
        starts = sorted({*range(0, last, step), last})
        sides.append([slice(start, min(start + crop, length)) for start in starts])
    yield from itertools.product(*sides)


def slide(network: Network, image: Tensor, crop_size: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Scores `[1, C, H, W]` of an image `[1, 3, H, W]`, the mean over the windows that see a pixel.

    network: gives scores `[B, C, h, w]` of windows `[B, 3, h, w]`.
    """
    total, count = None, image.new_zeros(image.shape[-2:])
    places = list(windows(image.shape[-2:], crop_size, stride))
    for begin in range(0, len(places), _TOGETHER):
        group = places[begin : begin + _TOGETHER]
        scores = network(torch.cat([image[(..., *place)] for place in group]))
        if total is None:
            total = scores.new_zeros(1, scores.shape[1], *image.shape[-2:])
        for place, score in zip(group, scores, strict=True):
            total[(0, ..., *place)] += score
            count[place] += 1
    return total / count
