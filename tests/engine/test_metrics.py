"""Against formulas in numpy, for any number of processes."""

import numpy as np
import pytest
import torch
from evaluated import by_the_book

from soft_vit.engine import metrics
from soft_vit.engine.metrics import ClassificationMetric


def scores(images: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    return 3 * torch.randn(images, classes), torch.randint(classes, (images,))


def samples(logits: torch.Tensor, target: torch.Tensor) -> list[dict]:
    return [{"pred_score": p, "gt_label": t[None]} for p, t in zip(logits.softmax(1), target, strict=True)]


def run(metric: ClassificationMetric, logits, target, batch: int = 4) -> dict:
    for part, labels in zip(logits.split(batch), target.split(batch), strict=True):
        metric.process({}, samples(part, labels))
    return metric.evaluate(len(target))


@pytest.mark.parametrize(("images", "classes", "topk"), [(5, 3, (1, 5)), (1, 2, (1,)), (64, 100, (1, 3, 7))])
def test_formulas(images, classes, topk):
    logits, target = scores(images, classes)
    # fp32 probabilities: half an ulp of relative error each, and the same absolute error in their logarithm.
    assert run(ClassificationMetric(topk), logits, target) == pytest.approx(by_the_book(logits, target, topk), abs=1e-6)


def test_restricted_to_classes_is_a_model_of_these_alone():
    logits, _ = scores(41, 20)
    kept = [17, 2, 5, 11, 3, 8]
    among = torch.randint(len(kept), (41,))
    target = torch.tensor(kept)[among]
    metric = ClassificationMetric((1, 5), class_indices=kept, confusion=True)
    assert run(metric, logits, target) == pytest.approx(by_the_book(logits[:, kept], among, (1, 5)), abs=1e-6)
    pairs = list(zip(among.tolist(), logits[:, kept].argmax(1).tolist(), strict=True))
    assert metric.confusion_table.tolist() == [[pairs.count((t, p)) for p in range(6)] for t in range(6)]


@pytest.mark.parametrize(("images", "world_size"), [(10, 2), (2, 3), (7, 4)])
def test_padding_is_not_counted_twice(images, world_size, monkeypatch):
    """Each process has every world_size-th image, and images from the start again to make the shares equal."""
    logits, target = scores(images, 5)
    share = -(-images // world_size)
    dealt = (list(range(images)) * world_size)[: share * world_size]

    sent = []
    monkeypatch.setattr(metrics, "all_reduce", lambda data, op="sum": sent.append(data.clone()))
    tables = []
    for rank in range(world_size):
        monkeypatch.setattr(metrics, "get_dist_info", lambda rank=rank: (rank, world_size))
        own = dealt[rank::world_size]
        metric = ClassificationMetric(confusion=True)
        metric.process({}, samples(logits[own], target[own]))
        if rank < images:
            metric.evaluate(images)
            tables.append(metric.confusion_table)
    sums = sum(data for data in sent if data.is_floating_point())
    assert sums[0] == images
    assert metric.compute_metrics(sums.tolist()) == pytest.approx(by_the_book(logits, target, (1, 5)), abs=1e-6)
    assert sum(tables).sum() == images


def test_impossible_prediction_has_a_finite_loss_and_nan_is_not_hidden():
    metric = ClassificationMetric((1,))
    loss = run(metric, torch.tensor([[0.0, 1000.0]]), torch.tensor([0]))["cross_entropy"]
    assert loss == pytest.approx(-np.log(np.finfo(np.float32).tiny), abs=1e-3)
    assert np.isnan(run(metric, torch.full((1, 2), float("nan")), torch.tensor([0]))["cross_entropy"])
