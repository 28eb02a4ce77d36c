"""Average precision as defined by COCO (cocodataset.org/#detection-eval), computed by faster-coco-eval."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster
from mmengine.evaluator import BaseMetric

from soft_vit.data.coco_masks import encode_masks
from soft_vit.ops.numerics import check_choice
from soft_vit.registry import METRICS, register

# In the order of COCO's evaluation.
NAMES = ("mAP", "mAP_50", "mAP_75", "mAP_s", "mAP_m", "mAP_l", "AR_1", "AR_10", "AR_100", "AR_s", "AR_m", "AR_l")


@register(METRICS)
class CocoAP(BaseMetric):
    """Computes `coco/bbox_mAP`, `coco/bbox_mAP_50` and so on, in [0, 1]; -1 without objects.

    Takes samples of `CocoImages` with `pred_instances`. The true objects are part of the samples, so the figures are
    those of COCO on the tested images.

    kinds: "bbox" for boxes, "segm" for masks. Raises ValueError for another kind.
    """

    default_prefix = "coco"

    def __init__(self, kinds: Sequence[str] = ("bbox",), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        for kind in self.kinds:
            check_choice("kinds", kind, ("bbox", "segm"))

    @property
    def names(self) -> list[str]:
        """Names of the metrics."""
        return [f"{self.prefix}/{kind}_{name}" for kind in self.kinds for name in NAMES]

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        for sample in data_samples:
            predicted = sample["pred_instances"]
            entry = {"id": sample["img_id"], "shape": sample["ori_shape"], "objects": sample["objects"]}
            entry |= {name: predicted[name].cpu().numpy() for name in ("bboxes", "scores", "labels")}
            if "segm" in self.kinds:
                entry["masks"] = encode_masks(predicted["masks"].cpu().numpy())
            # One entry per image: MMEngine cuts the gathered list to the number of images.
            self.results.append(entry)

    def compute_metrics(self, results: list[dict]) -> dict[str, float]:
        """Return the metrics of one entry for each image, from all processes."""
        meta = self.dataset_meta
        categories = zip(meta["category_ids"], meta["classes"], strict=True)
        sizes = [(entry["id"], *entry["shape"]) for entry in results]
        truth = {
            "images": [{"id": number, "height": height, "width": width} for number, height, width in sizes],
            "annotations": [dict(item) for entry in results for item in entry["objects"]],
            "categories": [{"id": number, "name": name} for number, name in categories],
        }
        metrics: dict[str, float] = {}
        for kind in self.kinds:
            # COCO changes what it is given. MMEngine logs the figures.
            coco = COCO(copy.deepcopy(truth))
            results_of = coco.loadRes(self._detections(results, kind))
            evaluation = COCOeval_faster(coco, results_of, iouType=kind, print_function=lambda *args: None)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            metrics |= {f"{kind}_{name}": float(value) for name, value in zip(NAMES, evaluation.stats, strict=False)}
        return metrics

    def _detections(self, results: list[dict], kind: str) -> list[dict]:
        """Return detections in COCO's result format, with either a box or a mask, from which COCO takes the area."""
        category_ids = self.dataset_meta["category_ids"]
        beyond = max((int(entry["labels"].max(initial=0)) for entry in results), default=0)
        if beyond >= len(category_ids):
            raise ValueError(f"model.num_classes must be {len(category_ids)} as in the data, got class {beyond}.")
        detections = []
        for entry in results:
            x0, y0, x1, y1 = entry["bboxes"].astype(np.float64).T
            boxes = np.stack([x0, y0, x1 - x0, y1 - y0], axis=1).tolist()
            key, shapes = ("bbox", boxes) if kind == "bbox" else ("segmentation", entry["masks"])
            scores, labels = entry["scores"].tolist(), entry["labels"].tolist()
            for shape, score, label in zip(shapes, scores, labels, strict=True):
                where = {"image_id": entry["id"], "category_id": category_ids[label]}
                detections.append({**where, key: shape, "score": score})
        return detections
