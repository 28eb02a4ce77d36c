"""mIoU, mAcc and aAcc against sets of pixels, class by class."""

import numpy as np
import pytest
import torch

from soft_vit.dense.segmentation import SegmentationMetric


def sets_of_pixels(truths, givens, num_classes):
    """The definitions, by sets of labelled pixels; nan where a set to divide by is empty."""
    labelled = {(i, *p) for i, t in enumerate(truths) for p in zip(*np.nonzero(t != 255), strict=True)}
    ious, accs, hits = [], [], 0
    for k in range(num_classes):
        has = {q for q in labelled if truths[q[0]][q[1:]] == k}
        got = {q for q in labelled if givens[q[0]][q[1:]] == k}
        both = len(has & got)
        hits += both
        ious.append(both / len(has | got) if has | got else np.nan)
        accs.append(both / len(has) if has else np.nan)
    return {"mIoU": 100 * np.nanmean(ious), "mAcc": 100 * np.nanmean(accs), "aAcc": 100 * hits / len(labelled)}


def sample(truth, given):
    return {
        "gt_sem_seg": {"data": torch.from_numpy(truth)[None]},
        "pred_sem_seg": {"data": torch.from_numpy(given).long()[None]},
    }


def metric_of(num_classes, **kwargs):
    metric = SegmentationMetric(**kwargs)
    metric.dataset_meta = {"classes": [f"class {k}" for k in range(num_classes)]}
    return metric


# Which classes occur and which are given, of seven.
@pytest.mark.parametrize(
    ("occurring", "given"), [(range(7), range(7)), (range(6), range(7)), (range(7), range(6)), ((0, 1, 5), (0, 1, 5))]
)
def test_figures_agree_with_sets_of_pixels(occurring, given):
    stream = np.random.default_rng(0)
    sizes = [(9, 7), (5, 11), (1, 13), (8, 8)]
    truths = [stream.choice([*occurring, 255], size).astype(np.uint8) for size in sizes]
    # Half of the pixels are right, where they can be.
    givens = [
        np.where((stream.random(t.shape) < 0.5) & np.isin(t, list(given)), t, stream.choice(list(given), t.shape))
        for t in truths
    ]
    metric, samples = metric_of(7), [sample(*pair) for pair in zip(truths, givens, strict=True)]
    metric.process(None, samples[:1])
    metric.process(None, samples[1:])
    assert metric.evaluate(len(sizes)) == pytest.approx(sets_of_pixels(truths, givens, 7), rel=1e-12)


def test_counts_stay_exact_beyond_float32():
    """2^24 + 1 pixels cannot be told from 2^24 in float32; a mean over images would not see the odd one."""
    metric = metric_of(2)
    # One wrong pixel of class 1, and 2^24 right ones of class 0 as `process` counts them.
    metric.process(None, [sample(np.ones((1, 1), np.uint8), np.zeros((1, 1), np.uint8))])
    metric.results.append((torch.tensor([0]), torch.tensor([2**24])))
    assert metric.evaluate(2)["aAcc"] == 100 * 2**24 / (2**24 + 1)


def test_an_image_that_another_process_has_counted_is_left_out():
    """A sampler fills up the last round, so that a process can see more images than its share."""
    metric = metric_of(2)
    right, wrong = np.zeros((3, 3), dtype=np.uint8), np.ones((3, 3), dtype=np.uint8)
    metric.process(None, [sample(right, right), sample(right, wrong)])
    assert metric.evaluate(1)["aAcc"] == 100


def test_a_class_beyond_those_of_the_data_is_refused():
    metric = metric_of(2)
    with pytest.raises(ValueError, match="2 as in the data, got class 2"):
        metric.process(None, [sample(np.zeros((3, 3), np.uint8), np.full((3, 3), 2, np.uint8))])
