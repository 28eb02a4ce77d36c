"""Mean IoU and accuracies of label maps, exact in distributed runs.

Letters: C classes, n pairs of a true and a predicted class that occur in an image.
"""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.dist import all_reduce, get_dist_info
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from torch import Tensor

from soft_vit.data.label_maps import IGNORED
from soft_vit.engine.errors import UserError
from soft_vit.registry import METRICS, register

__all__ = ["SegmentationMetric", "class_table", "confusion", "scores_of"]


@register(METRICS)
class SegmentationMetric(BaseMetric):
    """`mIoU`, `mAcc` and `aAcc` in percent, over all labelled pixels of all images, as mmseg defines them.

    IoU of a class: pixels that have and are given it, by those that have or are given it. Acc: by those that have it.
    aAcc: share of the pixels that are given their class. A class that neither occurs nor is given has no IoU, one that
    does not occur has no Acc; means leave them out.

    per_class: log the table of classes. prefix: stands before each name, to tell two metrics apart. confusion_table:
    after a test, pixels by true class (row) and predicted class (column), int64 [C, C]. Every process sends counts, no
    label maps. A sampler that deals images out in turn, as DefaultSampler does, gives the processes that come short
    images which others have counted; they are left out.
    """

    # MMEngine warns of a metric without a prefix; these names have none by default.
    default_prefix = "segmentation"

    def __init__(self, per_class: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.per_class = per_class
        self.confusion_table: Tensor | None = None

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        count = len(self._classes())
        for sample in data_samples:
            truth, given = sample["gt_sem_seg"]["data"], sample["pred_sem_seg"]["data"]
            table = confusion(truth, given.to(truth.device), count).flatten().cpu()
            # One entry an image; most pairs of classes do not occur in it.
            pairs = table.nonzero().flatten()
            self.results.append((pairs, table[pairs]))

    def _classes(self) -> Sequence[str]:
        classes = (self.dataset_meta or {}).get("classes")
        if not classes:
            raise UserError("SegmentationMetric needs a data set whose metainfo names its classes; give its classes.")
        return classes

    def evaluate(self, size: int) -> dict[str, float]:
        """The metrics of all processes, the same in each; size: number of images in the data set."""
        rank, world_size = get_dist_info()
        classes = self._classes()
        table = torch.zeros(len(classes) ** 2, dtype=torch.int64)
        for pairs, counts in self.results[: len(range(rank, size, world_size))]:
            table[pairs] += counts
        self.results.clear()
        all_reduce(table)
        self.confusion_table = table.reshape(len(classes), len(classes))
        if self.per_class:
            print_log("\n" + class_table(self.confusion_table, classes), "current")
        return self.compute_metrics(self.confusion_table)

    def compute_metrics(self, results: Tensor) -> dict[str, float]:
        """results: pixels by true and predicted class, int64 [C, C]."""
        iou, acc, overall = scores_of(results)
        front = "" if self.prefix == self.default_prefix else f"{self.prefix}/"
        return {
            f"{front}mIoU": 100 * iou.nanmean().item(),
            f"{front}mAcc": 100 * acc.nanmean().item(),
            f"{front}aAcc": 100 * overall.item(),
        }


def confusion(truth: Tensor, given: Tensor, num_classes: int) -> Tensor:
    """Pixels by true class (row) and given class (column), int64 [C, C]; those of true class 255 are left out.

    Raises UserError (a ValueError) for a given class that there is not.
    """
    labelled = truth != IGNORED
    truth, given = truth[labelled].long(), given[labelled].long()
    if given.numel() and given.max() >= num_classes:
        raise UserError(
            f"The model gives class {int(given.max())} to a pixel, and the data has {num_classes} classes; set "
            "model.num_classes."
        )
    pairs = truth * num_classes + given
    return torch.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def scores_of(table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """IoU [C], accuracy [C] and the accuracy over all pixels, in [0, 1], float64; nan where there is none."""
    table = table.double()
    hits, occurs, given = table.diagonal(), table.sum(1), table.sum(0)
    return hits / (occurs + given - hits), hits / occurs, hits.sum() / table.sum()


def class_table(table: Tensor, classes: Sequence[str]) -> str:
    """A line for each class with its IoU and accuracy in percent, `-` where it has none."""
    iou, acc, _ = scores_of(table)
    width = max(map(len, classes))
    lines = [f"{'class':<{width}}  {'IoU':>6}  {'Acc':>6}"]
    for name, *values in zip(classes, iou.tolist(), acc.tolist(), strict=True):
        lines.append(f"{name:<{width}}  " + "  ".join(f"{_percent(value):>6}" for value in values))
    return "\n".join(lines)


def _percent(value: float) -> str:
    return "-" if value != value else f"{100 * value:.2f}"
