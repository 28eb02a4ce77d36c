"""Predictions for an image, of any task, as JSON, text and drawing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from mmengine.structures import BaseDataElement
from PIL import Image
from torch import Tensor

from soft_vit.data.coco_masks import encode_masks
from soft_vit.engine.drawing import draw_classes, draw_instances, draw_segmentation, pixel_counts


@dataclass(frozen=True)
class RankedClasses:
    """Classes of the whole image, the most probable first. scores: in [0, 1]."""

    task: ClassVar[str] = "classification"

    indices: list[int]
    names: list[str]
    scores: list[float]

    def entries(self) -> list[dict[str, Any]]:
        """Return the prediction as JSON values."""
        columns = zip(self.names, self.indices, self.scores, strict=True)
        return [{"class": name, "index": index, "score": round(score, 6)} for name, index, score in columns]

    def draw(self, image: Image.Image) -> Image.Image:
        return draw_classes(image, self.names, self.scores)


@dataclass(frozen=True)
class Instances:
    """Objects in the image, the highest score first.

    boxes: `[n, 4]` as (x0, y0, x1, y1) in pixels of the image. labels: class indices. scores: in [0, 1]. masks: bool
    `[n, H, W]`, None for a model without masks.
    """

    task: ClassVar[str] = "detection"

    boxes: np.ndarray
    labels: list[int]
    names: list[str]
    scores: list[float]
    masks: np.ndarray | None = None

    def entries(self) -> list[dict[str, Any]]:
        """Return the prediction as JSON values, masks in COCO's run lengths."""
        found = [
            {"class": name, "label": label, "score": round(score, 6), "box": [round(float(side), 3) for side in box]}
            for name, label, score, box in zip(self.names, self.labels, self.scores, self.boxes, strict=True)
        ]
        if self.masks is not None:
            for entry, mask in zip(found, encode_masks(self.masks), strict=True):
                entry["mask"] = mask
        return found

    def draw(self, image: Image.Image) -> Image.Image:
        return draw_instances(image, self.boxes, self.labels, self.names, self.scores, self.masks)


@dataclass(frozen=True)
class ClassMap:
    """A class for each pixel. classes: integers `[H, W]`. names: of all classes."""

    task: ClassVar[str] = "segmentation"

    classes: np.ndarray
    names: list[str]

    def entries(self) -> list[dict[str, Any]]:
        """Return the pixels of each class as JSON values, the most frequent class first."""
        counts = pixel_counts(self.classes, len(self.names))
        present = sorted(np.flatnonzero(counts).tolist(), key=lambda index: -counts[index])
        shares = counts / self.classes.size
        return [
            {"class": self.names[i], "label": i, "pixels": int(counts[i]), "share": round(float(shares[i]), 6)}
            for i in present
        ]

    def draw(self, image: Image.Image) -> Image.Image:
        return draw_segmentation(image, self.classes, self.names)


Result = RankedClasses | Instances | ClassMap
"""A prediction for one image: classes, boxes with masks, or a label map."""


def ranked_classes(scores: Tensor, names: Sequence[str], topk: int) -> RankedClasses:
    """Return the `topk` most probable classes. scores: `[classes]`, in [0, 1]. Raises ValueError for NaN."""
    if scores.isnan().any():
        raise ValueError("The scores of the model must not be NaN; its training diverged.")
    best = scores.float().cpu().topk(min(topk, len(scores)))
    indices = best.indices.tolist()
    return RankedClasses(indices, [class_name(names, index) for index in indices], best.values.tolist())


def result_of(sample: BaseDataElement, names: Sequence[str], score_thr: float = 0.3, topk: int = 5) -> Result:
    """Return the prediction in a data sample of mmpretrain, mmdet or mmseg.

    `pred_score` means classification, `pred_instances` detection and `pred_sem_seg` segmentation. names: of the
    classes. score_thr: lowest score of an instance. topk: number of classes for an image.
    """
    if "pred_sem_seg" in sample:
        return class_map(_array(sample.pred_sem_seg.data).squeeze(0).astype(np.int64), names)
    if "pred_instances" in sample:
        found = sample.pred_instances
        scores = _array(found.scores).astype(np.float64)
        boxes = _array(found.bboxes).astype(np.float64).reshape(-1, 4)
        order = np.argsort(-scores, kind="stable")
        # NaN compares as false, so NaN scores are left out too.
        order = order[(scores[order] >= score_thr) & np.isfinite(boxes[order]).all(axis=1)]
        labels = _array(found.labels)[order].tolist()
        masks = _array(found.masks)[order].astype(bool) if "masks" in found else None
        return Instances(boxes[order], labels, [class_name(names, i) for i in labels], scores[order].tolist(), masks)
    return ranked_classes(sample.pred_score, names, topk)


def class_map(classes: np.ndarray, names: Sequence[str]) -> ClassMap:
    """Return classes `[H, W]` with the names of all."""
    return ClassMap(classes, [class_name(names, index) for index in range(max(len(names), int(classes.max()) + 1))])


def class_name(names: Sequence[str], index: int) -> str:
    """Return the name of a class, or its number where it has none."""
    return names[index] if index < len(names) else f"class {index}"


def _array(values: Tensor) -> np.ndarray:
    # NumPy lacks bfloat16.
    return (values.float() if values.is_floating_point() else values).detach().cpu().numpy()
