"""The generated scenes as files, in the layouts of COCO and ADE20K, and with a list of labels."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from soft_vit.data.coco_masks import encode_masks
from soft_vit.data.demo.drawing import CLASSES, tight_box
from soft_vit.data.demo.scenes import Instance, Scene, draw_scene, draw_several
from soft_vit.data.demo.shapes import SPLITS

CATEGORY_IDS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
"""Numbers of the classes in annotations, with gaps, as in COCO."""

Size = int | tuple[int, int]


def make_tree(
    out: str | Path, task: str, *, train: int = 200, val: int = 100, size: Size = 256, seed: int = 0
) -> dict[str, int]:
    """Write training and validation images with their annotations into a new or empty folder.

    task: "coco" (`annotations/instances_*2017.json`, `train2017`, `val2017`) or "ade" (`images` and `annotations`, each
    with `training` and `validation`; `classes.txt`) or "labels" (`train`, `val`, and in `train.csv` and `val.csv` the
    classes of each image, one to three).
    train, val: numbers of images. size: pixels, one number or (H, W). Returns the counts of what was written.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"out must be a new or an empty folder, got {out}.")
    out.mkdir(parents=True, exist_ok=True)
    return TASKS[task](out, {"train": train, "val": val}, size, seed)


def _save(image: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, quality=95)


def _scenes(split: str, count: int, size: Size, seed: int) -> Iterator[tuple[int, Scene]]:
    """Return scenes with their numbers, from 1."""
    for i in tqdm(range(count), unit="image", desc=split):
        yield i + 1, draw_scene(seed, SPLITS[split] + i, size)


def _write_coco(folder: Path, counts: dict[str, int], size: Size, seed: int) -> dict[str, int]:
    total = 0
    numbered = zip(CATEGORY_IDS, CLASSES, strict=True)
    categories = [{"id": i, "name": name, "supercategory": "shape"} for i, name in numbered]
    for split, count in counts.items():
        images, annotations = [], []
        for number, scene in _scenes(split, count, size, seed):
            height, width = scene.image.shape[:2]
            image = {"id": number, "file_name": f"{number:012d}.jpg", "height": height, "width": width}
            _save(scene.image, folder / f"{split}2017" / image["file_name"])
            images.append(image)
            for instance in scene.instances:
                annotations.append({"id": len(annotations) + 1, "image_id": number, **_annotation(instance)})
        info = {"description": f"Generated shapes, seed {seed}, split {split}"}
        content = {"info": info, "images": images, "annotations": annotations, "categories": categories}
        path = folder / "annotations" / f"instances_{split}2017.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
        total += len(annotations)
    return {"images": sum(counts.values()), "annotations": total}


def _annotation(instance: Instance) -> dict:
    x0, y0, x1, y1 = tight_box(instance.mask)
    if instance.contours is not None and len(instance.contours) == 1:
        # COCO fills each outline of a list, so a hole needs run lengths.
        segmentation = [instance.contours[0].round(2).flatten().tolist()]
    else:
        (segmentation,) = encode_masks(instance.mask[None])
    where = {"category_id": CATEGORY_IDS[instance.label], "bbox": [x0, y0, x1 - x0, y1 - y0]}
    kind = {"area": int(instance.mask.sum()), "iscrowd": int(instance.crowd)}
    return {**where, **kind, "segmentation": segmentation}


def _write_ade(folder: Path, counts: dict[str, int], size: Size, seed: int) -> dict[str, int]:
    for split, name in (("train", "training"), ("val", "validation")):
        for number, scene in _scenes(split, counts[split], size, seed):
            _save(scene.image, folder / "images" / name / f"{number:08d}.jpg")
            _save(scene.label_map, folder / "annotations" / name / f"{number:08d}.png")
    (folder / "classes.txt").write_text("\n".join(["background", *CLASSES]) + "\n")
    return {"images": sum(counts.values()), "classes": 1 + len(CLASSES)}


def _write_labels(folder: Path, counts: dict[str, int], size: Size, seed: int) -> dict[str, int]:
    for split, count in counts.items():
        lines = ["image,labels"]
        for i in tqdm(range(count), unit="image", desc=split):
            image, labels = draw_several(seed, SPLITS[split] + i, size)
            _save(image, folder / split / f"{i:06d}.jpg")
            lines.append(f"{i:06d}.jpg,{'|'.join(CLASSES[label] for label in labels)}")
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return {"images": sum(counts.values()), "classes": len(CLASSES)}


TASKS = {"coco": _write_coco, "ade": _write_ade, "labels": _write_labels}
"""Functions that write the data of each task."""
