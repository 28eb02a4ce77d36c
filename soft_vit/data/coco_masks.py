"""Masks in COCO's forms: polygons and run lengths, by faster_coco_eval, which the extra `detection` brings.

H, W: height and width of the image in pixels.
"""

import math
from typing import Any

import numpy as np


def check_segmentation(segmentation: Any, height: int, width: int) -> tuple[Any, str | None]:
    """Return a segmentation with a pixel and None, or None and the problem.

    The problem is "polygon_empty", "mask_broken" or "mask_empty". Polygons of fewer than three points are left out.
    """
    from faster_coco_eval import mask

    found = segmentation
    if isinstance(segmentation, dict):
        if not _is_rle(segmentation, height, width):
            return None, "mask_broken"
    elif segmentation is None or segmentation == []:
        return None, "polygon_empty"
    elif not isinstance(segmentation, list) or not all(_is_polygon(polygon) for polygon in segmentation):
        return None, "mask_broken"
    elif not (found := [polygon for polygon in segmentation if len(polygon) >= 6]):
        return None, "polygon_empty"
    # Decoding takes a hundred times as long.
    return (found, None) if mask.area(mask.segmToRle(found, width, height)) else (None, "mask_empty")


def decode_segmentation(segmentation: list | dict, height: int, width: int) -> np.ndarray:
    """Return the mask of a checked segmentation, uint8 `[H, W]` of 0 and 1."""
    from faster_coco_eval import mask

    return mask.decode(mask.segmToRle(segmentation, width, height))


def encode_masks(masks: np.ndarray) -> list[dict[str, Any]]:
    """Return masks, bool `[n, H, W]`, as packed run lengths for JSON."""
    from faster_coco_eval import mask

    packed = mask.encode(np.asfortranarray(masks.transpose(1, 2, 0), dtype=np.uint8)) if len(masks) else []
    return [{"size": list(masks.shape[1:]), "counts": bytes(rle["counts"]).decode()} for rle in packed]


def _is_polygon(points: Any) -> bool:
    if not isinstance(points, list) or len(points) % 2:
        return False
    return all(isinstance(p, int | float) and math.isfinite(p) for p in points)


def _is_rle(rle: dict, height: int, width: int) -> bool:
    """Return whether run lengths fill the image exactly, which faster_coco_eval checks when it decodes."""
    if rle.get("size") != [height, width] or not isinstance(rle.get("counts"), str | list):
        return False
    try:
        decode_segmentation(rle, height, width)
    except (ValueError, RuntimeError, TypeError):
        return False
    return True
