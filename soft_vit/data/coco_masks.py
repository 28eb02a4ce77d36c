"""Masks in COCO's three forms: polygons, run lengths, and run lengths packed into a string.

Run lengths go down the columns and start with a run of zeros. In the string each number is a group of characters from
"0" on, of five bits each, the lowest first; a sixth bit says that another character follows. From the fourth number on,
they are differences from the number two places before (github.com/cocodataset/cocoapi, maskApi.c).

H, W: height and width of the image in pixels.
"""

import math
from typing import Any

import numpy as np

__all__ = ["check_segmentation", "decode_segmentation", "encode_masks", "pack_runs", "run_lengths", "unpack_runs"]


def check_segmentation(segmentation: Any, height: int, width: int) -> tuple[Any, str | None]:
    """A segmentation that can be decoded and None, or None and the problem, "polygon_empty" or "mask_broken".

    Polygons of fewer than three points are left out.
    """
    if isinstance(segmentation, dict):
        return (segmentation, None) if _is_rle(segmentation, height, width) else (None, "mask_broken")
    if segmentation is None or segmentation == []:
        return None, "polygon_empty"
    if not isinstance(segmentation, list) or not all(_is_polygon(polygon) for polygon in segmentation):
        return None, "mask_broken"
    polygons = [polygon for polygon in segmentation if len(polygon) >= 6]
    return (polygons, None) if polygons else (None, "polygon_empty")


def decode_segmentation(segmentation: list | dict, height: int, width: int) -> np.ndarray:
    """The mask of a checked segmentation, uint8 `[H, W]` of 0 and 1. Needs the detection extra."""
    from faster_coco_eval import mask

    return mask.decode(mask.segmToRle(segmentation, width, height))


def encode_masks(masks: np.ndarray) -> list[dict[str, Any]]:
    """Masks, bool `[n, H, W]`, as packed run lengths for JSON. Needs the detection extra."""
    from faster_coco_eval import mask

    packed = mask.encode(np.asfortranarray(masks.transpose(1, 2, 0), dtype=np.uint8)) if len(masks) else []
    return [{"size": [int(side) for side in rle["size"]], "counts": _text(rle["counts"])} for rle in packed]


def _text(counts: str | bytes) -> str:
    return counts.decode() if isinstance(counts, bytes) else counts


def _is_polygon(points: Any) -> bool:
    if not isinstance(points, list) or len(points) % 2:
        return False
    return all(isinstance(p, int | float) and not isinstance(p, bool) and math.isfinite(p) for p in points)


def _is_rle(rle: dict, height: int, width: int) -> bool:
    """Whether the runs fill the image exactly, which the decoder in C does not check."""
    counts = rle.get("counts")
    if rle.get("size") != [height, width]:
        return False
    if isinstance(counts, str):
        counts = unpack_runs(counts)
    if not isinstance(counts, list) or not all(type(run) is int and run >= 0 for run in counts):
        return False
    return sum(counts) == height * width


def run_lengths(mask: np.ndarray) -> list[int]:
    """Lengths of the runs of a mask, bool `[H, W]`; the first is 0 if the mask starts with a one."""
    flat = np.concatenate([[False], mask.flatten(order="F"), [not mask[-1, -1]]])
    ends = np.flatnonzero(flat[1:] != flat[:-1])
    return np.diff(ends, prepend=0).tolist()


def pack_runs(runs: list[int]) -> str:
    """The string of run lengths."""
    text = []
    for i, run in enumerate(runs):
        value = run - runs[i - 2] if i > 2 else run
        while True:
            bits, value = value & 31, value >> 5
            # The sign bit of this group extends to the rest.
            more = value != (-1 if bits & 16 else 0)
            text.append(chr(48 + (bits | 32 * more)))
            if not more:
                break
    return "".join(text)


def unpack_runs(text: str) -> list[int] | None:
    """The run lengths in a string, or None if it is damaged."""
    runs: list[int] = []
    value, shift = 0, 0
    for character in text:
        bits = ord(character) - 48
        # Seven characters hold a run of any image.
        if not 0 <= bits < 64 or shift > 35:
            return None
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value, shift = 0, 0
    return None if shift else runs
