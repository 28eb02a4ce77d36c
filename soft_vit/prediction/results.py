"""What a model says of an image, whichever task it was trained for: as JSON, as lines of text, as a drawing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from mmengine.structures import BaseDataElement
from PIL import Image
from torch import Tensor

from soft_vit.engine.errors import UserError

__all__ = [
    "ClassMap",
    "Instances",
    "Painter",
    "Predictor",
    "RankedClasses",
    "Result",
    "class_name",
    "ranked_classes",
    "result_of",
]


class Painter(Protocol):
    """What draws results; `soft_vit.prediction.drawing` does."""

    def draw_classes(self, image: Image.Image, names: Sequence[str], scores: Sequence[float]) -> Image.Image: ...

    def draw_instances(
        self,
        image: Image.Image,
        boxes: np.ndarray,
        labels: Sequence[int],
        names: Sequence[str],
        scores: Sequence[float],
        masks: np.ndarray | None,
    ) -> Image.Image: ...

    def draw_segmentation(self, image: Image.Image, classes: np.ndarray, names: Sequence[str]) -> Image.Image: ...

    def index_image(self, classes: np.ndarray) -> Image.Image: ...


class Result(Protocol):
    """The prediction for one image."""

    task: ClassVar[str]

    def entries(self) -> list[dict[str, Any]]:
        """The prediction in values that JSON knows."""

    def lines(self) -> list[str]:
        """The prediction for a reader, a line each."""

    def draw(self, painter: Painter, image: Image.Image) -> Image.Image: ...


class Predictor(Protocol):
    """A model with all that it takes to go from images to results. notes: what had to be changed in its weights."""

    notes: list[str]

    def __call__(self, images: Sequence[Image.Image]) -> Sequence[Result]:
        """A result for each RGB image, of any size."""


@dataclass(frozen=True)
class RankedClasses:
    """Classes of the whole image, the most probable first. scores: in [0, 1]."""

    task: ClassVar[str] = "classification"

    indices: list[int]
    names: list[str]
    scores: list[float]

    def entries(self) -> list[dict[str, Any]]:
        columns = zip(self.names, self.indices, self.scores, strict=True)
        return [{"class": name, "index": index, "score": round(score, 6)} for name, index, score in columns]

    def lines(self) -> list[str]:
        return [f"{100 * score:5.1f} %  {name}" for name, score in zip(self.names, self.scores, strict=True)]

    def draw(self, painter: Painter, image: Image.Image) -> Image.Image:
        return painter.draw_classes(image, self.names, self.scores)


@dataclass(frozen=True)
class Instances:
    """Objects in the image, the most certain first.

    boxes: `[n, 4]`, x0 y0 x1 y1 in pixels of the image. labels: indices of classes. scores: in [0, 1]. masks: bool
    `[n, H, W]`, None for a model without.
    """

    task: ClassVar[str] = "detection"

    boxes: np.ndarray
    labels: list[int]
    names: list[str]
    scores: list[float]
    masks: np.ndarray | None = None

    def entries(self) -> list[dict[str, Any]]:
        found = [
            {"class": name, "label": label, "score": round(score, 6), "box": [round(float(side), 3) for side in box]}
            for name, label, score, box in zip(self.names, self.labels, self.scores, self.boxes, strict=True)
        ]
        if self.masks is not None:
            # Only detectors need what reads and writes COCO's masks.
            from soft_vit.data.coco_masks import encode_masks

            for entry, mask in zip(found, encode_masks(self.masks), strict=True):
                entry["mask"] = mask
        return found

    def lines(self) -> list[str]:
        if not self.labels:
            return ["nothing found"]
        width = max(map(len, self.names))
        return [
            f"{score:.2f}  {name:<{width}}  " + " ".join(f"{side:.0f}" for side in box)
            for name, score, box in zip(self.names, self.scores, self.boxes, strict=True)
        ]

    def draw(self, painter: Painter, image: Image.Image) -> Image.Image:
        return painter.draw_instances(image, self.boxes, self.labels, self.names, self.scores, self.masks)


@dataclass(frozen=True)
class ClassMap:
    """The class of each pixel, int `[H, W]`. names: of all classes."""

    task: ClassVar[str] = "segmentation"

    classes: np.ndarray
    names: list[str]

    def entries(self) -> list[dict[str, Any]]:
        counts = np.bincount(self.classes.ravel())
        present = sorted(np.flatnonzero(counts).tolist(), key=lambda label: -counts[label])
        return [
            {
                "class": class_name(self.names, label),
                "label": label,
                "pixels": int(counts[label]),
                "share": round(float(counts[label] / self.classes.size), 6),
            }
            for label in present
        ]

    def lines(self) -> list[str]:
        return [f"{100 * entry['share']:5.1f} %  {entry['class']}" for entry in self.entries()]

    def draw(self, painter: Painter, image: Image.Image) -> Image.Image:
        count = max(len(self.names), int(self.classes.max(initial=0)) + 1)
        return painter.draw_segmentation(image, self.classes, [class_name(self.names, i) for i in range(count)])


def class_name(names: Sequence[str], index: int) -> str:
    """The name of a class, or its number where it has none."""
    return names[index] if index < len(names) else f"class {index}"


def ranked_classes(scores: Tensor, names: Sequence[str], topk: int) -> RankedClasses:
    """The most probable classes. scores: `[classes]`, in [0, 1]. Raises UserError (a ValueError) for NaN."""
    if scores.isnan().any():
        raise UserError("The model's scores are not numbers (NaN); give weights of a run that did not diverge.")
    best = scores.float().cpu().topk(min(topk, len(scores)))
    indices = best.indices.tolist()
    return RankedClasses(indices, [class_name(names, index) for index in indices], best.values.tolist())


def result_of(sample: BaseDataElement, names: Sequence[str], score_thr: float = 0.3, topk: int = 5) -> Result:
    """The result in a data sample that a model has predicted into; its fields tell the task.

    `pred_sem_seg` is segmentation, `pred_instances` detection and `pred_score` classification, as in mmseg, mmdet and
    mmpretrain. names: of the classes. score_thr: least score of an instance. topk: classes of an image. Raises
    UserError (a ValueError) for a sample without any of these.
    """
    names = list(names)
    if "pred_sem_seg" in sample:
        return ClassMap(_array(sample.pred_sem_seg.data).squeeze(0).astype(np.int64), names)
    if "pred_instances" in sample:
        return _instances(sample.pred_instances, names, score_thr)
    if "pred_score" in sample:
        return ranked_classes(sample.pred_score, names, topk)
    fields = ", ".join(sample.keys()) or "nothing"
    raise UserError(
        f"The model predicts {fields}, and what can be shown is pred_score, pred_instances or pred_sem_seg; give the "
        "config of a classifier, a detector or a segmentation model."
    )


def _instances(found: Any, names: list[str], score_thr: float) -> Instances:
    scores = _array(found.scores).astype(np.float64)
    boxes = _array(found.bboxes).astype(np.float64).reshape(-1, 4)
    order = np.argsort(-scores, kind="stable")
    # A comparison with NaN is false.
    order = order[(scores[order] >= score_thr) & np.isfinite(boxes[order]).all(axis=1)]
    labels = _array(found.labels)[order].tolist()
    return Instances(
        boxes=boxes[order],
        labels=labels,
        names=[class_name(names, label) for label in labels],
        scores=scores[order].tolist(),
        masks=_array(found.masks)[order].astype(bool) if "masks" in found else None,
    )


def _array(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        # NumPy knows no bfloat16.
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return np.asarray(values)
