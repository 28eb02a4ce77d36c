"""Annotations in COCO's format (cocodataset.org/#format-data), checked entry by entry."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
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
        """A sentence for each kind that occurred, with the ids or names of the first examples."""
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
    # Set once all objects are read.
    boxes: np.ndarray = field(init=False)
    labels: np.ndarray = field(init=False)
    trainable: np.ndarray = field(init=False)


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
    *,
    classes: Sequence[str] | None = None,
    masks: bool = False,
) -> CocoAnnotations:
    """Read an annotation file of COCO's format.

    files: names of the image files, relative to their folder. classes: names of the classes to keep, in order; by
    default all, by category id. masks: keep and check segmentations.

    A bad entry is left out and counted. Raises FileNotFoundError for a missing file, and ValueError if it is not JSON,
    lacks a part, repeats a category, names a file outside of the folder, or has no usable image.
    """
    path = Path(path)
    content = _load(path)
    categories = _categories(content["categories"], path)
    category_ids = list(categories) if classes is None else _chosen(classes, categories, path)
    names = [categories[number] for number in category_ids]
    problems = CocoProblems()
    images = _images(content["images"], files, problems, path)
    reader = _ObjectReader(images, set(categories), category_ids, masks, problems)
    for entry in content["annotations"]:
        entry = entry if isinstance(entry, dict) else {}
        if problem := reader.add(entry):
            problems.add(problem, entry.get("id"))
    if not images:
        why = " ".join(problems.sentences()).rstrip(".") or "it lists none"
        raise ValueError(
            f"None of the {len(content['images'])} images in {path} can be used ({why}); correct the file."
        )
    if not any(image.has_file for image in images.values()):
        first = next(iter(images.values())).file_name
        raise ValueError(f"None of the images in {path} has a file, such as {first}; give the folder that holds them.")
    return CocoAnnotations(path, names, category_ids, reader.finish(), problems)


def _load(path: Path) -> dict[str, list]:
    if not path.is_file():
        raise FileNotFoundError(f"There is no annotation file {path}; give the path of a JSON file in COCO's format.")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); write or download it again.") from error
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise ValueError(f"{path} has no list {key!r}; give a file in COCO's format for detection.")
    return content


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _categories(entries: list, path: Path) -> dict[int, str]:
    """Names by id, in the order of the ids."""
    names: dict[int, str] = {}
    for entry in entries:
        if not isinstance(entry, dict) or not _is_id(entry.get("id")) or not isinstance(entry.get("name"), str):
            raise ValueError(f"{path} has a category without a number id and a name: {entry!r}; correct the file.")
        if entry["id"] in names:
            raise ValueError(f"{path} has the category id {entry['id']} twice; correct the file.")
        names[entry["id"]] = entry["name"]
    if not names:
        raise ValueError(f"{path} lists no categories; give a file that names its classes.")
    return dict(sorted(names.items()))


def _chosen(classes: Sequence[str], categories: dict[int, str], path: Path) -> list[int]:
    """The category id of each class. Raises ValueError for an unknown or ambiguous name."""
    given = list(categories.values())
    for name in classes:
        if name not in given:
            raise ValueError(f"{path} has no category {name!r}; choose classes among {', '.join(sorted(given))}.")
        if given.count(name) > 1 or list(classes).count(name) > 1:
            raise ValueError(
                f"{name!r} occurs twice in the classes or in the categories of {path}; give each its own name."
            )
    id_of = {name: number for number, name in categories.items()}
    return [id_of[name] for name in classes]


def _plain_name(name: str, path: Path) -> str:
    """A file's path below its folder. Raises ValueError for a path that leaves the folder."""
    windows = PureWindowsPath(name)
    if windows.drive or windows.root or ".." in windows.parts or "\0" in name:
        raise ValueError(f"{path} names the file {name!r}, outside of the folder of the images; correct the file.")
    return PurePosixPath(name).as_posix()


def _images(entries: list, files: Collection[str], problems: CocoProblems, path: Path) -> dict[int, CocoImage]:
    images: dict[int, CocoImage] = {}
    files = set(files)
    for entry in entries:
        entry = entry if isinstance(entry, dict) else {}
        number, name = entry.get("id"), entry.get("file_name")
        sides = entry.get("width"), entry.get("height")
        if not (_is_id(number) and isinstance(name, str) and name and all(_is_id(s) and s > 0 for s in sides)):
            problems.add("image_broken", number if number is not None else name)
            continue
        if number in images:
            problems.add("image_repeated", number)
            continue
        name = _plain_name(name, path)
        has_file = name in files
        if not has_file:
            problems.add("image_missing", name)
        images[number] = CocoImage(number, name, *sides, has_file)
    return images


class _ObjectReader:
    """Adds annotations to their images."""

    def __init__(
        self,
        images: dict[int, CocoImage],
        known: set[int],
        category_ids: Sequence[int],
        masks: bool,
        problems: CocoProblems,
    ) -> None:
        self.images = images
        self.known = known
        self.label_of = {number: label for label, number in enumerate(category_ids)}
        self.masks = masks
        self.problems = problems
        self._boxes: dict[int, list[tuple[float, ...] | None]] = defaultdict(list)
        self._seen: set[int] = set()

    def add(self, entry: dict[str, Any]) -> str | None:
        """Add an entry to its image, or return the kind of problem for which it is left out."""
        number, category, box = entry.get("id"), entry.get("category_id"), _numbers(entry.get("bbox"))
        if box is None or not all(map(_is_id, (number, category, entry.get("image_id")))):
            return "object_broken"
        if number in self._seen:
            return "object_repeated"
        self._seen.add(number)
        image = self.images.get(entry["image_id"])
        if image is None:
            return "image_unknown"
        if category not in self.label_of:
            # A category that is listed and not chosen is no problem.
            return None if category in self.known else "category_unknown"
        kept = {"id": number, "image_id": image.id, "category_id": category, "bbox": list(box)}
        kept["iscrowd"] = int(bool(entry.get("iscrowd")))
        area = entry.get("area")
        kept["area"] = area if isinstance(area, int | float) and math.isfinite(area) else box[2] * box[3]
        if self.masks:
            kept["segmentation"], problem = check_segmentation(entry.get("segmentation"), image.height, image.width)
            if problem:
                return problem
        self._boxes[image.id].append(None if kept["iscrowd"] else self._clip(box, image, number))
        image.objects.append(kept)
        return None

    def _clip(self, box: Sequence[float], image: CocoImage, number: int) -> tuple[float, ...] | None:
        """The corners of a box (x, y, width, height) inside the image; None if nothing is left."""
        x, y, width, height = box
        if width <= 0 or height <= 0:
            self.problems.add("box_empty", number)
            return None
        corners = (max(x, 0.0), max(y, 0.0), min(x + width, image.width), min(y + height, image.height))
        # Close coordinates may coincide in float32.
        x0, y0, x1, y1 = np.asarray(corners, np.float32).tolist()
        if x1 <= x0 or y1 <= y0:
            self.problems.add("box_outside", number)
            return None
        if min(x, y, image.width - x - width, image.height - y - height) < -_TOLERANCE:
            self.problems.add("box_clipped", number)
        return x0, y0, x1, y1

    def finish(self) -> list[CocoImage]:
        for image in self.images.values():
            boxes = self._boxes.get(image.id, [])
            image.boxes = np.array([box or (0, 0, 0, 0) for box in boxes], np.float32).reshape(-1, 4)
            image.labels = np.array([self.label_of[entry["category_id"]] for entry in image.objects], np.int64)
            image.trainable = np.array([box is not None for box in boxes], bool)
        return list(self.images.values())


def _numbers(box: Any) -> tuple[float, ...] | None:
    """Four finite numbers, or None."""
    if not isinstance(box, list) or len(box) != 4:
        return None
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in box):
        return None
    return tuple(map(float, box)) if all(map(math.isfinite, box)) else None
