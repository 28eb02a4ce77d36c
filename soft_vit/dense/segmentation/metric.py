"""Mean IoU and accuracies of label maps, exact in distributed runs.

Letters: C classes, n pairs of a true and a predicted class that occur in an image.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from mmengine.dist import all_reduce, get_dist_info
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from torch import Tensor

from soft_vit.data.label_maps import IGNORED
from soft_vit.registry import METRICS, register


@register(METRICS)
class SegmentationMetric(BaseMetric):
    """`mIoU`, `mAcc` and `aAcc` in percent over all labelled pixels of all images, as mmseg defines them.

    IoU: the correct pixels of a class, divided by the pixels that belong to it or are predicted as it. Acc: divided by
    the pixels that belong to it. aAcc: the share of correct pixels. Means leave out classes without such pixels.

    A table of the classes is logged. Processes exchange counts, not label maps. Images that a sampler such as
    DefaultSampler repeats to fill up a process are counted once.
    """

    # MMEngine warns of a metric without a prefix.
    default_prefix = "segmentation"
    names = ("mIoU", "mAcc", "aAcc")

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        count = len(self.dataset_meta["classes"])
        for sample in data_samples:
            truth, predicted = sample["gt_sem_seg"]["data"], sample["pred_sem_seg"]["data"]
            table = confusion(truth, predicted.to(truth.device), count).flatten().cpu()
            # One entry for an image; most pairs of classes do not occur in it.
            pairs = table.nonzero().flatten()
            self.results.append((pairs, table[pairs]))

    def evaluate(self, size: int) -> dict[str, float]:
        """Return the metrics over all processes. size: number of images in the data set."""
        rank, world_size = get_dist_info()
        classes = self.dataset_meta["classes"]
        table = torch.zeros(len(classes) ** 2, dtype=torch.int64)
        for pairs, counts in self.results[: len(range(rank, size, world_size))]:
            table[pairs] += counts
        self.results.clear()
        all_reduce(table)
        table = table.reshape(len(classes), len(classes))
        print_log("\n" + class_table(table, classes), "current")
        return self.compute_metrics(table)

    def compute_metrics(self, results: Tensor) -> dict[str, float]:
        """Return the metrics of pixels by true and predicted class, int64 `[C, C]`."""
        iou, acc, overall = scores_of(results)
        means = iou.nanmean(), acc.nanmean(), overall
        return {name: 100 * value.item() for name, value in zip(self.names, means, strict=True)}


def confusion(truth: Tensor, predicted: Tensor, num_classes: int) -> Tensor:
    """Return the number of labelled pixels by true class (row) and predicted class (column), int64 `[C, C]`.

    Raises ValueError for a predicted class of `num_classes` or more.
    """
    labelled = truth != IGNORED
    truth, predicted = truth[labelled].long(), predicted[labelled].long()
    if predicted.numel() and predicted.max() >= num_classes:
        raise ValueError(f"model.num_classes must be {num_classes} as in the data, got class {int(predicted.max())}.")
    return torch.bincount(truth * num_classes + predicted, minlength=num_classes**2).reshape(num_classes, num_classes)


def scores_of(table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return IoU `[C]`, accuracy `[C]` and accuracy over all pixels, float64 in [0, 1]; NaN where undefined."""
    table = table.double()
    hits, true, predicted = table.diagonal(), table.sum(1), table.sum(0)
    return hits / (true + predicted - hits), hits / true, hits.sum() / table.sum()


def class_table(table: Tensor, classes: Sequence[str]) -> str:
    """Return a line for each class with its IoU and accuracy in percent, `-` where undefined."""
    iou, acc, _ = scores_of(table)
    width = max(map(len, classes))
    lines = [f"{'class':<{width}}  {'IoU':>6}  {'Acc':>6}"]
    for name, *values in zip(classes, iou.tolist(), acc.tolist(), strict=True):
        cells = ["-" if math.isnan(value) else f"{100 * value:.2f}" for value in values]
        lines.append(f"{name:<{width}}  {cells[0]:>6}  {cells[1]:>6}")
    return "\n".join(lines)
