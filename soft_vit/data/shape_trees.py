"""The generated shapes as files, in the layouts of COCO, ADE20K and ImageNet."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from soft_vit.data.coco_masks import pack_runs, run_lengths
from soft_vit.data.shape_drawing import CLASSES, tight_box
from soft_vit.data.shape_scenes import Instance, Scene, draw_scene
from soft_vit.data.shapes import SPLITS, ShapeImages

__all__ = ["CATEGORY_IDS", "TASKS", "make_tree"]

CATEGORY_IDS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
"""Numbers of the classes in annotations, with gaps, as in COCO."""

Size = int | tuple[int, int]


def make_tree(
    out: str | Path, task: str, *, train: int = 200, val: int = 100, size: Size = 256, seed: int = 0
) -> dict[str, int]:
    """Write training and validation images with their annotations; the folder appears once it is complete.

    task: "coco" (`annotations/instances_*2017.json`, `train2017`, `val2017`), "ade" (`images` and `annotations`, each
    with `training` and `validation`; `classes.txt`), or "imagefolder" (`train` and `val` with a folder for each class).
    train, val: numbers of images, at least 1. size: pixels, one number or (H, W). Returns the counts of what was
    written. Raises ValueError for other values, and for a folder that is not empty.
    """
    if task not in TASKS:
        raise ValueError(f"task is {task!r}; choose one of {', '.join(TASKS)}.")
    for name, value in (("train", train), ("val", val)):
        if value < 1:
            raise ValueError(f"{name} is {value}; give the number of images, at least 1.")
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is not an empty folder; give another folder, or remove this one.")
    with _complete_folder(out) as folder, tqdm(total=train + val, unit="image", desc=f"{task} tree") as bar:
        return TASKS[task](folder, {"train": train, "val": val}, size, seed, bar)


@contextmanager
def _complete_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes `path` at the end, or is removed if writing fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        # Replaces an empty folder.
        temporary.replace(path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            # A user does not know the temporary name.
            error.filename, error.filename2 = str(path), None
        raise


def _save(image: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, quality=95)


def _scenes(split: str, count: int, size: Size, seed: int, bar: tqdm) -> Iterator[tuple[int, Scene]]:
    for i in range(count):
        yield i, draw_scene(seed, SPLITS[split] + i, size)
        bar.update()


def _write_coco(folder: Path, counts: dict[str, int], size: Size, seed: int, bar: tqdm) -> dict[str, int]:
    totals = {"images": 0, "annotations": 0, "crowds": 0, "images without annotations": 0}
    categories = [
        {"id": number, "name": name, "supercategory": "shape"}
        for number, name in zip(CATEGORY_IDS, CLASSES, strict=True)
    ]
    for split, count in counts.items():
        images, annotations = [], []
        for i, scene in _scenes(split, count, size, seed, bar):
            height, width = scene.image.shape[:2]
            image = {"id": i + 1, "file_name": f"{i + 1:012d}.jpg", "height": height, "width": width}
            _save(scene.image, folder / f"{split}2017" / image["file_name"])
            images.append(image)
            annotations += [
                {"id": len(annotations) + k + 1, "image_id": i + 1, **_coco_annotation(instance)}
                for k, instance in enumerate(scene.instances)
            ]
            totals["images without annotations"] += not scene.instances
        content = {
            "info": {"description": f"Generated shapes, seed {seed}, split {split}"},
            "images": images,
            "annotations": annotations,
            "categories": categories,
        }
        path = folder / "annotations" / f"instances_{split}2017.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
        totals["images"] += len(images)
        totals["annotations"] += len(annotations)
        totals["crowds"] += sum(annotation["iscrowd"] for annotation in annotations)
    return totals


def _coco_annotation(instance: Instance) -> dict:
    x0, y0, x1, y1 = tight_box(instance.mask)
    return {
        "category_id": CATEGORY_IDS[instance.label],
        "bbox": [x0, y0, x1 - x0, y1 - y0],
        "area": int(instance.mask.sum()),
        "iscrowd": int(instance.crowd),
        "segmentation": _segmentation(instance),
    }


def _segmentation(instance: Instance) -> list | dict:
    """A polygon for a single outline, else run lengths: a list for a crowd, as in COCO, or packed into a string.

    COCO fills each outline of a list, so a hole needs run lengths.
    """
    if instance.contours is not None and len(instance.contours) == 1:
        return [instance.contours[0].round(2).flatten().tolist()]
    runs = run_lengths(instance.mask)
    return {"size": list(instance.mask.shape), "counts": runs if instance.crowd else pack_runs(runs)}


def _write_ade(folder: Path, counts: dict[str, int], size: Size, seed: int, bar: tqdm) -> dict[str, int]:
    for split, name in (("train", "training"), ("val", "validation")):
        for i, scene in _scenes(split, counts[split], size, seed, bar):
            _save(scene.image, folder / "images" / name / f"{i + 1:08d}.jpg")
            _save(scene.label_map, folder / "annotations" / name / f"{i + 1:08d}.png")
    (folder / "classes.txt").write_text("\n".join(["background", *CLASSES]) + "\n")
    return {"images": sum(counts.values()), "classes": 1 + len(CLASSES)}


def _write_imagefolder(folder: Path, counts: dict[str, int], size: Size, seed: int, bar: tqdm) -> dict[str, int]:
    for split, count in counts.items():
        for i, sample in enumerate(ShapeImages(count, split, seed, size)):
            _save(sample.image, folder / split / CLASSES[sample.label] / f"{i + 1:08d}.jpg")
            bar.update()
    return {"images": sum(counts.values()), "classes": len(CLASSES)}


TASKS: dict[str, Callable[[Path, dict[str, int], Size, int, tqdm], dict[str, int]]] = {
    "coco": _write_coco,
    "ade": _write_ade,
    "imagefolder": _write_imagefolder,
}
"""What writes the data of each task."""
