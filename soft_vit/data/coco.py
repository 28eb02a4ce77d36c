"""Annotations in COCO's format (cocodataset.org/#format-data), checked entry by entry."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from soft_vit.data.coco_masks import check_segmentation

__all__ = ["CocoAnnotations", "CocoImage", "CocoProblems", "read_coco"]

# Problems of single entries, and their treatment.
KINDS = {
    "image_broken": "Images without a usable id, file_name, width or height are left out",
    "image_repeated": "Images with an id that occurred before are left out",
    "image_missing": "Images without a file are not trained on",
    "object_broken": "Annotations without a usable id, image_id, category_id or bbox are left out",
    "object_repeated": "Annotations with an id that occurred before are left out",
    "image_unknown": "Annotations of an unlisted image are left out",
    "category_unknown": "Annotations of an unlisted category are left out",
    "box_empty": "Annotations with a box without area are not trained on",
    "box_outside": "Annotations with a box outside the image are not trained on",
    "box_clipped": "Boxes that reach beyond the image are clipped for training",
    "polygon_empty": "Annotations without a mask, or only with polygons of fewer than three points, are left out",
    "mask_broken": "Annotations with a mask that cannot be decoded are left out",
}
_EXAMPLES = 5
# Pixels by which rounded coordinates may lie outside.
_TOLERANCE = 0.5


class CocoProblems(Counter):
    """Problems of single entries: the count of each kind, and the first examples."""

    def __init__(self) -> None:
        super().__init__()
        self.examples: dict[str, list[Any]] = defaultdict(list)

    def add(self, kind: str, name: Any) -> None:
        self[kind] += 1
        if self[kind] <= _EXAMPLES:
            self.examples[kind].append(str(name))

    def sentences(self) -> list[str]:
        """Return a sentence for each kind that occurred, with the ids or names of the first examples."""
        found = []
        for kind, text in KINDS.items():
            if self[kind]:
                more = f" and {self[kind] - _EXAMPLES} more" if self[kind] > _EXAMPLES else ""
                found.append(f"{text}: {self[kind]} ({', '.join(self.examples[kind])}{more}).")
        return found


@dataclass(slots=True)
class CocoImage:
    """An image with its n objects, in pixels.

    boxes: float32 `[n, 4]` as (x0, y0, x1, y1) inside the image. labels: int64 `[n]`, class indices from 0. trainable:
    bool `[n]`, False for crowds and for boxes without area. objects: the n entries of the file, for evaluation.
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
    """The content of a file: class names in the order of their category ids, images, and problems of entries."""

    path: Path
    classes: list[str]
    category_ids: list[int]
    images: list[CocoImage]
    problems: CocoProblems


def read_coco(
    path: str | Path,
    files: Collection[str],
    masks: bool = False,
) -> CocoAnnotations:
    """Read an annotation file of COCO's format.

    files: names of the image files, relative to their folder. masks: keep and check segmentations.

    A bad entry is left out and counted. Raises FileNotFoundError for a missing file, and ValueError if it is not JSON,
    lacks a part, repeats a category, names a file outside of the folder, or has no usable image.
    """
    path = Path(path)
    content = _load(path)
    categories = _categories(content["categories"], path)
    label_of = {number: label for label, number in enumerate(categories)}
    problems = CocoProblems()
    images = _images(content["images"], set(files), problems, path)
    seen: set[int] = set()
    for entry in content["annotations"]:
        entry = entry if isinstance(entry, dict) else {}
        problem, kept = _object(entry, images, categories, seen)
        if problem is None and masks:
            image = images[kept["image_id"]]
            kept["segmentation"], problem = check_segmentation(entry.get("segmentation"), image.height, image.width)
        if problem:
            problems.add(problem, entry.get("id"))
        else:
            image = images[kept["image_id"]]
            box = None if kept["iscrowd"] else _clip(kept, image, problems)
            image.objects.append(kept)
            image.boxes.append(box or (0, 0, 0, 0))
            image.labels.append(label_of[kept["category_id"]])
            image.trainable.append(box is not None)
    if not any(image.has_file for image in images.values()):
        why = " ".join(problems.sentences()).rstrip(".") or "it lists none"
        raise ValueError(f"{path} must list images with files, none of {len(content['images'])} can be used ({why}).")
    for image in images.values():
        image.boxes = np.array(image.boxes, np.float32).reshape(-1, 4)
        image.labels, image.trainable = np.array(image.labels, np.int64), np.array(image.trainable, bool)
    return CocoAnnotations(path, list(categories.values()), list(categories), list(images.values()), problems)


def _load(path: Path) -> dict[str, list]:
    if not path.is_file():
        raise FileNotFoundError(f"There is no annotation file {path}.")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON ({error}); write or download it again.") from error
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise ValueError(f"{path} must hold a list {key!r}, as COCO's format for detection does.")
    return content


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _categories(entries: list, path: Path) -> dict[int, str]:
    """Return names by id, in the order of the ids."""
    names: dict[int, str] = {}
    for entry in entries:
        known = isinstance(entry, dict) and _is_id(entry.get("id")) and isinstance(entry.get("name"), str)
        if not known or entry["id"] in names:
            raise ValueError(f"Every category of {path} must have an id of its own and a name, got {entry!r}.")
        names[entry["id"]] = entry["name"]
    if not names:
        raise ValueError(f"{path} must list categories.")
    return dict(sorted(names.items()))


def _images(entries: list, files: set[str], problems: CocoProblems, path: Path) -> dict[int, CocoImage]:
    images: dict[int, CocoImage] = {}
    for entry in entries:
        entry = entry if isinstance(entry, dict) else {}
        number, name = entry.get("id"), entry.get("file_name")
        sides = entry.get("width"), entry.get("height")
        if not (_is_id(number) and isinstance(name, str) and name and all(_is_id(s) and s > 0 for s in sides)):
            problems.add("image_broken", number if number is not None else name)
        elif number in images:
            problems.add("image_repeated", number)
        else:
            windows = PureWindowsPath(name)
            if windows.drive or windows.root or ".." in windows.parts or "\0" in name:
                raise ValueError(f"{path} must name files inside the folder of the images, got {name!r}.")
            name = PurePosixPath(name).as_posix()
            images[number] = CocoImage(number, name, *sides, name in files)
            if name not in files:
                problems.add("image_missing", name)
    return images


def _object(
    entry: dict[str, Any], images: dict[int, CocoImage], categories: dict[int, str], seen: set[int]
) -> tuple[str | None, dict[str, Any]]:
    """Return the problem for which an annotation is left out, if any, and what is kept of it."""
    number, image_id, category, box = (entry.get(key) for key in ("id", "image_id", "category_id", "bbox"))
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        return "object_broken", {}
    if not all(map(_is_id, (number, category, image_id))):
        return "object_broken", {}
    if number in seen:
        return "object_repeated", {}
    seen.add(number)
    if image_id not in images:
        return "image_unknown", {}
    if category not in categories:
        return "category_unknown", {}
    kept = {"id": number, "image_id": image_id, "category_id": category, "bbox": [float(side) for side in box]}
    kept["iscrowd"] = int(bool(entry.get("iscrowd")))
    kept["area"] = entry["area"] if _is_number(entry.get("area")) else kept["bbox"][2] * kept["bbox"][3]
    return None, kept


def _clip(kept: dict[str, Any], image: CocoImage, problems: CocoProblems) -> tuple[float, ...] | None:
    """Return the corners of a box (x, y, width, height) inside the image; None if nothing is left."""
    x, y, width, height = kept["bbox"]
    if width <= 0 or height <= 0:
        problems.add("box_empty", kept["id"])
        return None
    corners = (max(x, 0.0), max(y, 0.0), min(x + width, image.width), min(y + height, image.height))
    # Close coordinates may coincide in float32.
    x0, y0, x1, y1 = np.asarray(corners, np.float32).tolist()
    if x1 <= x0 or y1 <= y0:
        problems.add("box_outside", kept["id"])
        return None
    if min(x, y, image.width - x - width, image.height - y - height) < -_TOLERANCE:
        problems.add("box_clipped", kept["id"])
    return x0, y0, x1, y1
