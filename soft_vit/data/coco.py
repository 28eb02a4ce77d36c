"""Annotations in COCO's format (cocodataset.org/#format-data), checked entry by entry."""

import json
import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from soft_vit.data.coco_masks import check_segmentation

# Problems of single entries, and how each is treated.
PROBLEMS = {
    "image_broken": "Images without a usable id of their own, file_name, width or height are left out",
    "image_missing": "Images without a file are not trained on",
    "object_broken": "Annotations without a usable id of their own, image_id, category_id, bbox or flag are left out",
    "image_unknown": "Annotations of an unlisted image are left out",
    "category_unknown": "Annotations of an unlisted category are left out",
    "box_empty": "Annotations with a box without area inside the image are not trained on",
    "box_clipped": "Boxes that reach beyond the image are clipped for training",
    "polygon_empty": "Annotations without a mask, or only with polygons of fewer than three points, are left out",
    "mask_broken": "Annotations with a mask that cannot be decoded are left out",
    "mask_empty": "Annotations with a mask without a pixel are left out",
}
_EXAMPLES = 5
# What Python raises for an entry of another form.
_MALFORMED = (KeyError, TypeError, ValueError, OverflowError)
# Pixels by which rounded coordinates may lie outside.
_TOLERANCE = 0.5


class CocoProblems(defaultdict[str, list[str]]):
    """Problems of single entries: the names of the entries with each."""

    def sentences(self) -> list[str]:
        """Return a sentence for each problem that occurred, with the names of the first entries."""
        found = []
        for problem, text in PROBLEMS.items():
            if names := self.get(problem):
                more = f" and {len(names) - _EXAMPLES} more" if len(names) > _EXAMPLES else ""
                found.append(f"{text}: {len(names)} ({', '.join(names[:_EXAMPLES])}{more}).")
        return found


@dataclass(slots=True)
class CocoImage:
    """An image with its n objects, in pixels.

    boxes: float32 `[n, 4]` as (x0, y0, x1, y1) inside the image. labels: int64 `[n]`, class indices from 0. trainable:
    bool `[n]`, False for crowds, for objects to ignore and for boxes without area. objects: the n entries of the file,
    for evaluation, which treats objects to ignore as crowds; their ids are their places in the file, from 1.
    has_file: whether the image file was found.
    """

    id: int
    file_name: str
    width: int
    height: int
    has_file: bool
    objects: list[dict[str, Any]] = field(default_factory=list)
    # Arrays once all objects are read.
    boxes: Any = field(default_factory=list)
    labels: Any = field(default_factory=list)
    trainable: Any = field(default_factory=list)


@dataclass
class CocoAnnotations:
    """The content of a file: class names in the order of their category ids, images, and problems of single entries."""

    path: Path
    classes: list[str]
    category_ids: list[int]
    images: list[CocoImage]
    problems: CocoProblems


def read_coco(path: str | Path, files: Collection[str], masks: bool = False) -> CocoAnnotations:
    """Read an annotation file of COCO's format.

    files: names of the image files, relative to their folder. masks: keep and check segmentations.

    A bad entry is left out and counted. Raises FileNotFoundError for a missing file, and ValueError if it is not JSON,
    lacks a part, repeats the id or the name of a category, or lists only images without files.
    """
    path = Path(path)
    content = _load(path)
    categories = _categories(content["categories"], path)
    label_of = {number: label for label, number in enumerate(categories)}
    problems = CocoProblems(list)
    images = _images(content["images"], set(files), problems)
    seen: set[str] = set()
    # An id of 0 would mean to COCO's evaluation that an object was not found.
    for number, entry in enumerate(content["annotations"], 1):
        entry = entry if isinstance(entry, dict) else {}
        name = entry.get("id")
        problem, kept = _object(entry, images, categories)
        if name is not None and str(name) in seen:
            problem, kept = "object_broken", {}
        seen.add(str(name))
        kept["id"], image = number, images.get(kept.get("image_id"))
        if problem is None and masks:
            kept["segmentation"], problem = check_segmentation(entry.get("segmentation"), image.height, image.width)
        if problem:
            problems[problem].append(str(kept.get("why", name)))
        else:
            box = None if kept["iscrowd"] else _clip(kept["bbox"], name, image, problems)
            image.objects.append(kept)
            image.boxes.append(box or (0, 0, 0, 0))
            image.labels.append(label_of[kept["category_id"]])
            image.trainable.append(box is not None)
    if not any(image.has_file for image in images.values()):
        why = " ".join(problems.sentences()).rstrip(".") or "it lists 0"
        raise ValueError(f"{path} must list images with files, 0 of {len(content['images'])} can be used ({why}).")
    for image in images.values():
        image.boxes = np.array(image.boxes, np.float32).reshape(-1, 4)
        image.labels, image.trainable = np.array(image.labels, np.int64), np.array(image.trainable, bool)
    return CocoAnnotations(path, list(categories.values()), list(categories), list(images.values()), problems)


def _load(path: Path) -> dict[str, list]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON ({error}); write or download it again.") from error
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise ValueError(f"{path} must hold a list {key!r}, as COCO's format for detection does.")
    return content


def _categories(entries: list, path: Path) -> dict[int, str]:
    """Return names by id, in the order of the ids."""
    try:
        names = {_whole(entry, "id"): str(entry["name"]) for entry in entries}
    except _MALFORMED as error:
        raise ValueError(f"Every category of {path} must have a whole number as id and a name, got {error}.") from error
    if not names or len(names) < len(entries):
        raise ValueError(f"{path} must list categories with different ids, got {[entry['id'] for entry in entries]}.")
    for name in names.values():
        if len(ids := [number for number, other in names.items() if other == name]) > 1:
            raise ValueError(f"{path} must list categories with different names, got {name!r} for the ids {ids}.")
    return dict(sorted(names.items()))


def _whole(entry: dict[str, Any], key: str) -> int:
    """Return a whole number, which may be written as text or with a point. Raises ValueError that names the field."""
    value = entry.get(key)
    if (isinstance(value, str) and value.isdecimal()) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    if type(value) is not int:
        raise ValueError(f"{key} {value!r}")
    return value


def _flag(entry: dict[str, Any], key: str) -> bool:
    """Return a flag, which may be 0, 1, their text, a truth value or missing. Raises ValueError for anything else."""
    value = entry.get(key)
    if value in (None, ""):
        return False
    if (text := str(value).lower()) not in ("0", "1", "0.0", "1.0", "false", "true"):
        raise ValueError(f"{key} {value!r}")
    return text in ("1", "1.0", "true")


def _images(entries: list, files: set[str], problems: CocoProblems) -> dict[int, CocoImage]:
    images: dict[int, CocoImage] = {}
    for entry in entries:
        try:
            number, width, height = (_whole(entry, key) for key in ("id", "width", "height"))
            # The path as an archive lists it.
            name = PurePosixPath(entry["file_name"]).as_posix()
            if min(width, height) < 1 or number in images:
                raise ValueError(entry)
        except (*_MALFORMED, AttributeError) as error:
            problems["image_broken"].append(str(error))
        else:
            images[number] = CocoImage(number, name, width, height, name in files)
            if name not in files:
                problems["image_missing"].append(name)
    return images


def _object(
    entry: dict[str, Any], images: dict[int, CocoImage], categories: dict[int, str]
) -> tuple[str | None, dict[str, Any]]:
    """Return the problem for which an annotation is left out, if any, and what is kept of it."""
    try:
        if not isinstance(entry["bbox"], list):
            raise ValueError(f"bbox {entry['bbox']!r}")
        x, y, width, height = map(float, entry["bbox"])
        kept = {name: _whole(entry, name) for name in ("image_id", "category_id")}
        area = entry.get("area")
        kept["area"] = width * height if area is None else float(area)
        if not all(map(math.isfinite, (x, y, width, height, kept["area"]))):
            raise ValueError(f"bbox {entry['bbox']}")
        # COCO's evaluation knows crowds alone, whose detections count neither as right nor as wrong.
        crowd = _flag(entry, "iscrowd") or _flag(entry, "ignore")
    except _MALFORMED as error:
        return "object_broken", {"why": f"{entry.get('id')}: {error}"}
    kept |= {"bbox": [x, y, width, height], "iscrowd": int(crowd)}
    if kept["image_id"] not in images:
        return "image_unknown", {}
    if kept["category_id"] not in categories:
        return "category_unknown", {}
    return None, kept


def _clip(bbox: list[float], name: Any, image: CocoImage, problems: CocoProblems) -> tuple[float, ...] | None:
    """Return the corners of a box (x, y, width, height), clipped to the image; None if the box is empty there."""
    x, y, width, height = bbox
    corners = (max(x, 0.0), max(y, 0.0), min(x + width, image.width), min(y + height, image.height))
    # Close coordinates may coincide in float32.
    x0, y0, x1, y1 = np.asarray(corners, np.float32).tolist()
    if x1 <= x0 or y1 <= y0:
        problems["box_empty"].append(str(name))
        return None
    if min(x, y, image.width - x - width, image.height - y - height) < -_TOLERANCE:
        problems["box_clipped"].append(str(name))
    return x0, y0, x1, y1
