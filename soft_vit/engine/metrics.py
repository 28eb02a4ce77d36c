"""Accuracy, cross entropy, average precision and ROC of a classifier, exact in distributed runs too.

Letters: B images of a batch, C classes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.dist import all_reduce, get_dist_info
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from mmpretrain import evaluation
from mmpretrain.registry import METRICS as MMPRETRAIN_METRICS
from torch import Tensor

from soft_vit.registry import METRICS, register


@register(METRICS)
class ClassificationMetric(BaseMetric):
    """Means over images: `accuracy/top1` and so on in percent, and `cross_entropy` with hard labels.

    topk: the k of each accuracy; one above the number of classes counts as that number. class_indices: the classes of
    the images, if not all; predictions are restricted to them. confusion: keep the table
    `confusion_table`, `[C, C]`, images by true class (row) and predicted class (column), of class_indices where given.

    Processes exchange sums, not predictions. Samplers such as DefaultSampler repeat images at the end to give each rank
    the same number; the repeated ones are not counted.

    The loss comes from probabilities in fp32, so one image contributes at most 87.3, for the smallest normal number.
    """

    default_prefix = "accuracy"

    def __init__(
        self,
        topk: int | Sequence[int] = (1, 5),
        class_indices: Sequence[int] | None = None,
        confusion: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topk = (topk,) if isinstance(topk, int) else tuple(topk)
        self.class_indices = None if class_indices is None else torch.as_tensor(class_indices)
        self.confusion = confusion
        self.confusion_table: Tensor | None = None
        self._num_classes = 0

    @property
    def names(self) -> list[str]:
        """Names of the metrics."""
        return [*(f"{self.prefix}/top{k}" for k in self.topk), "cross_entropy"]

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        score = torch.stack([sample["pred_score"] for sample in data_samples]).float()
        target = torch.cat([sample["gt_label"] for sample in data_samples])
        self.results.append(self.measure(score, target.to(score.device)).cpu())

    def measure(self, score: Tensor, target: Tensor) -> Tensor:
        """Return rows of target, prediction, loss and a hit for each k, float64; score: `[B, C]`, target: `[B]`."""
        if self.class_indices is not None:
            indices = self.class_indices.to(score.device)
            place = torch.full((score.shape[1],), -1, device=score.device)
            place[indices] = torch.arange(len(indices), device=score.device)
            score, target = score[:, indices], place[target]
        self._num_classes = score.shape[1]
        log_score = score.clamp(min=torch.finfo(score.dtype).tiny).double().log().log_softmax(1)
        loss = -log_score.gather(1, target[:, None])[:, 0]
        top = score.topk(min(max(self.topk), self._num_classes), dim=1).indices
        hit = (top == target[:, None]).cumsum(1)
        hits = [hit[:, min(k, self._num_classes) - 1] for k in self.topk]
        return torch.stack([target.double(), top[:, 0].double(), loss, *(h.double() for h in hits)], dim=1)

    def evaluate(self, size: int) -> dict[str, float]:
        """Return the metrics over all processes; size: number of images in the data set."""
        rank, world_size = get_dist_info()
        count = len(range(rank, size, world_size))
        rows = torch.cat([torch.zeros(0, 3 + len(self.topk), dtype=torch.float64), *self.results])[:count]
        self.results.clear()
        sums = torch.cat([torch.tensor([len(rows)]), rows[:, 2:].sum(0)])
        all_reduce(sums)
        if self.confusion:
            # Of all processes, of which one may have seen no image.
            classes = torch.tensor(self._num_classes)
            all_reduce(classes, op="max")
            pairs = (rows[:, 0] * classes + rows[:, 1]).long()
            self.confusion_table = torch.bincount(pairs, minlength=int(classes) ** 2).reshape(int(classes), -1)
            all_reduce(self.confusion_table)
        return self.compute_metrics(sums.tolist())

    def compute_metrics(self, results: list[float]) -> dict[str, float]:
        """Return the metrics from the number of images, the sum of losses, and the hits for each k."""
        images, loss, *hits = results
        return dict(zip(self.names, [*(100 * hit / images for hit in hits), loss / images], strict=True))


@register(METRICS)
class AreaUnderCurve(BaseMetric):
    """`roc/auc`: area under the ROC curve of each class against the others, a mean over classes that can be compared.

    It is the share of pairs of a sample of the class and another one that the scores put in order; ties count half.
    """

    default_prefix = "roc"
    names = ("roc/auc",)

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        self.results += [(sample["pred_score"].cpu(), int(sample["gt_label"])) for sample in data_samples]

    def compute_metrics(self, results: list[tuple[Tensor, int]]) -> dict[str, float]:
        scores, areas = torch.stack([score for score, _ in results]), []
        labels = torch.tensor([label for _, label in results])
        # Odds tell scores near 1 apart.
        scores = scores.double() / (scores.double() @ (1 - torch.eye(scores.shape[1], dtype=torch.double)))
        for label, score in enumerate(scores.T):
            own, others = score[labels == label], score[labels != label].sort().values
            if len(own) and len(others):
                below = sum(torch.searchsorted(others, own, right=side).double().mean() for side in (False, True)) / 2
                areas.append(float(below) / len(others))
        return {"auc": sum(areas) / len(areas) if areas else float("nan")}


@MMPRETRAIN_METRICS.register_module(force=True)
class AveragePrecision(evaluation.AveragePrecision):
    """mmpretrain's AveragePrecision without the classes that no image has, which it counts as 0.

    They are NaN with `average=None`, and their number is logged. It takes the place of mmpretrain's under its name.
    """

    def compute_metrics(self, results: list[dict[str, Tensor]]) -> dict[str, Any]:
        target, score = (torch.stack([result[key] for result in results]) for key in ("gt_score", "pred_score"))
        present = (target == 1).any(dim=0)
        precision = self.calculate(score, target, average=None).where(present, torch.nan)
        if not present.all():
            without = f"{int((~present).sum())} of {len(present)} classes"
            print_log(f"Average precision leaves out {without}, which no image has.", "current")
        return {"AP_classwise": precision.tolist()} if self.average is None else {"mAP": precision.nanmean().item()}
