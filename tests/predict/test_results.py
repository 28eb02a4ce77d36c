"""Results from data samples of the three kinds of models: what JSON, a reader and a drawing get."""

import json

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from mmpretrain.structures import DataSample
from pycocotools import mask as coco

from soft_vit.predict import RankedClasses, result_of

NAMES = ["circle", "square", "star"]


def classified(scores: torch.Tensor) -> DataSample:
    return DataSample().set_pred_score(scores)


def detected(scores: list[float], masks: torch.Tensor | None = None) -> BaseDataElement:
    count = len(scores)
    boxes = torch.arange(4.0 * count).reshape(count, 4)
    found = InstanceData(bboxes=boxes, scores=torch.tensor(scores), labels=torch.arange(count) % 5)
    if masks is not None:
        found.masks = masks
    return BaseDataElement(pred_instances=found)


def segmented(classes: torch.Tensor) -> BaseDataElement:
    return BaseDataElement(pred_sem_seg=PixelData(data=classes[None]))


def test_classes_come_in_the_order_of_their_scores():
    found = result_of(classified(torch.tensor([0.125, 0.625, 0.25])), NAMES, topk=2)
    assert found == RankedClasses([1, 2], ["square", "star"], [0.625, 0.25])
    assert found.entries() == [
        {"class": "square", "index": 1, "score": 0.625},
        {"class": "star", "index": 2, "score": 0.25},
    ]


def test_scores_that_are_no_numbers_are_a_mistake():
    with pytest.raises(ValueError, match="NaN"):
        result_of(classified(torch.tensor([0.1, float("nan")])), NAMES)


def test_instances_above_the_least_score_the_best_first():
    found = result_of(detected([0.3, 0.875, 0.25, 0.5]), NAMES, score_thr=0.3)
    # 0.3 in float32 is above 0.3.
    assert found.labels == [1, 3, 0]
    assert found.names == ["square", "class 3", "circle"]
    assert found.entries()[0] == {"class": "square", "label": 1, "score": 0.875, "box": [4.0, 5.0, 6.0, 7.0]}
    assert "mask" not in found.entries()[0]


def test_masks_can_be_read_by_cocos_own_code():
    masks = torch.rand(3, 13, 7) > 0.5
    masks[1] = False
    found = result_of(detected([0.5, 0.9, 0.7], masks), NAMES)
    entries = json.loads(json.dumps(found.entries()))
    for entry, index in zip(entries, [1, 2, 0], strict=True):
        assert entry["mask"]["size"] == [13, 7]
        np.testing.assert_array_equal(coco.decode(entry["mask"]), masks[index].numpy())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_boxes_and_scores_are_left_out(value):
    sample = detected([0.5, float("nan"), 0.7])
    sample.pred_instances.bboxes[0, 2] = value
    assert result_of(sample, NAMES).labels == [2]


def test_a_result_without_objects():
    found = result_of(detected([0.1], torch.zeros(1, 9, 9, dtype=torch.bool)), NAMES)
    assert (found.entries(), found.masks.shape) == ([], (0, 9, 9))


def test_shares_of_a_map_add_up():
    classes = torch.tensor([[0, 2, 2], [2, 4, 2]])
    found = result_of(segmented(classes), NAMES)
    assert found.entries() == [
        {"class": "star", "label": 2, "pixels": 4, "share": 0.666667},
        {"class": "circle", "label": 0, "pixels": 1, "share": 0.166667},
        {"class": "class 4", "label": 4, "pixels": 1, "share": 0.166667},
    ]


def test_bfloat16_of_a_model_on_half_precision():
    sample = detected([0.5, 0.75])
    sample.pred_instances.scores = sample.pred_instances.scores.bfloat16()
    sample.pred_instances.bboxes = sample.pred_instances.bboxes.bfloat16()
    assert result_of(sample, NAMES).scores == [0.75, 0.5]
    assert result_of(classified(torch.tensor([0.25, 0.75]).bfloat16()), NAMES).scores == [0.75, 0.25]


def test_other_predictions_are_named():
    with pytest.raises(ValueError, match="pred_depth"):
        result_of(BaseDataElement(pred_depth=torch.zeros(1)), NAMES)
