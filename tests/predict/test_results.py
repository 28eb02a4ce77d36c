"""Results from data samples of the three kinds of models: what JSON, a reader and a drawing get."""

import json

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData
from mmpretrain.structures import DataSample
from pycocotools import mask as coco

from soft_vit.predict import RankedClasses, result_of

NAMES = ["circle", "square", "star"]


def detected(scores: list[float], dtype: torch.dtype = torch.float32, **more: torch.Tensor) -> BaseDataElement:
    boxes = torch.arange(4 * len(scores), dtype=dtype).reshape(-1, 4)
    found = InstanceData(bboxes=boxes, scores=torch.tensor(scores, dtype=dtype), labels=torch.arange(len(scores)))
    found.update(InstanceData(**more))
    return BaseDataElement(pred_instances=found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_classes_come_in_the_order_of_their_scores(dtype):
    sample = DataSample().set_pred_score(torch.tensor([0.125, 0.5, 0.0, 0.25], dtype=dtype))
    found = result_of(sample, NAMES, topk=2)
    assert found == RankedClasses([1, 3], ["square", "class 3"], [0.5, 0.25])
    assert found.entries()[1] == {"class": "class 3", "index": 3, "score": 0.25}
    assert len(result_of(sample, NAMES, topk=5).indices) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_instances_above_the_least_score_the_best_first(dtype):
    # 0.3 in float32 and in bfloat16 is above 0.3.
    found = result_of(detected([0.3, 0.875, 0.25, 0.5], dtype), NAMES, score_thr=0.3)
    assert (found.labels, found.names) == ([1, 3, 0], ["square", "class 3", "circle"])
    assert found.entries()[0] == {"class": "square", "label": 1, "score": 0.875, "box": [4.0, 5.0, 6.0, 7.0]}


def test_masks_can_be_read_by_cocos_own_code():
    masks = torch.rand(3, 13, 7) > 0.5
    masks[1] = False
    entries = json.loads(json.dumps(result_of(detected([0.5, 0.9, 0.7], masks=masks), NAMES).entries()))
    for entry, index in zip(entries, [1, 2, 0], strict=True):
        assert entry["mask"]["size"] == [13, 7]
        np.testing.assert_array_equal(coco.decode(entry["mask"]), masks[index].numpy())
    nothing = result_of(detected([0.1] * 3, masks=masks), NAMES)
    assert (nothing.entries(), nothing.masks.shape) == ([], (0, 13, 7))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_boxes_and_scores_are_left_out(value):
    sample = detected([0.5, float("nan"), 0.7])
    sample.pred_instances.bboxes[0, 2] = value
    assert result_of(sample, NAMES).labels == [2]
