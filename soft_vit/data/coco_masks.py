"""Masks in COCO's three forms: polygons, run lengths, and run lengths packed into a string.

H, W: height and width of the image.
"""

import math
from typing import Any

import numpy as np
from faster_coco_eval import mask

from soft_vit.data.run_lengths import unpack_runs

__all__ = ["check_segmentation", "decode_segmentation", "encode_masks"]


def check_segmentation(segmentation: Any, height: int, width: int) -> tuple[Any, str | None]:
    """A mask that can be decoded, and None; or None and what is wrong with it: "polygon_empty" or "mask_broken".

    Of several polygons, those of less than three points are left out.
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
    """The mask of a checked segmentation, uint8 [H, W] of 0 and 1."""
    return mask.decode(mask.segmToRle(segmentation, width, height))


def encode_masks(masks: np.ndarray) -> list[dict[str, Any]]:
    """Masks, bool [n, H, W], as packed run lengths that JSON can hold."""
    packed = mask.encode(np.asfortranarray(masks.transpose(1, 2, 0), dtype=np.uint8)) if len(masks) else []
    return [{"size": [int(side) for side in rle["size"]], "counts": _text(rle["counts"])} for rle in packed]


def _text(counts: str | bytes) -> str:
    return counts.decode() if isinstance(counts, bytes) else counts


def _is_polygon(points: Any) -> bool:
    if not isinstance(points, list) or len(points) % 2:
        return False
    return all(isinstance(p, int | float) and not isinstance(p, bool) and math.isfinite(p) for p in points)


def _is_rle(rle: dict, height: int, width: int) -> bool:
    """Whether the runs fill the image exactly; a decoder written in C may not look."""
    counts = rle.get("counts")
    if rle.get("size") != [height, width]:
        return False
    if isinstance(counts, str):
        counts = unpack_runs(counts)
    if not isinstance(counts, list) or not all(type(run) is int and run >= 0 for run in counts):
        return False
    return sum(counts) == height * width
