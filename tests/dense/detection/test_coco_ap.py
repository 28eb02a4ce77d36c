"""Average precision against pycocotools on the same detections."""

import json

import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torchvision.ops import box_convert

from soft_vit.dense.detection import CocoAP, CocoImages
from soft_vit.dense.detection.coco_ap import NAMES

TRAIN = ("annotations/instances_train2017.json", "train2017")


def guesses(data, generator, count):
    """Samples with detections: true objects moved a little, a fifth of them of a random class, and boxes of chance."""
    samples = []
    ids = data.metainfo["category_ids"]
    for index in range(len(data)):
        sample = data[index]["data_samples"]
        height, width = sample.ori_shape
        true = torch.tensor([entry["bbox"] for entry in sample.objects], dtype=torch.float32).reshape(-1, 4)
        true = box_convert(true, "xywh", "xyxy") + 2 * torch.randn(true.shape, generator=generator)
        corner = torch.rand(count, 2, generator=generator) * 0.7 * torch.tensor([width, height])
        chance = torch.cat([corner, corner + 5 + 30 * torch.rand(count, 2, generator=generator)], 1)
        boxes = torch.cat([true, chance])
        labels = torch.randint(len(ids), (len(boxes),), generator=generator)
        for place, entry in enumerate(sample.objects):
            if place % 5:
                labels[place] = ids.index(entry["category_id"])
        rows, columns = torch.arange(height)[None, :, None], torch.arange(width)[None, None]
        x0, y0, x1, y1 = boxes[:, :, None, None].unbind(1)
        masks = (columns >= x0) & (columns < x1) & (rows >= y0) & (rows < y1)
        scores = torch.rand(len(boxes), generator=generator)
        # Neither all before the boxes of chance nor spread among them.
        scores[: len(true)] += 0.7
        sample.pred_instances = InstanceData(bboxes=boxes, scores=scores, labels=labels, masks=masks)
        samples.append(sample)
    return samples


def reference(truth, detections, kind):
    """COCO's own figures for a file of detections."""
    coco = COCO(str(truth))
    evaluation = COCOeval(coco, coco.loadRes(str(detections)), kind)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return evaluation.stats


@pytest.fixture
def odd_truth(tree, tmp_path):
    """Annotations with a large crowd, an image without any, an object of each range of areas, one class alone."""
    content = json.loads((tree / TRAIN[0]).read_text())
    first, second = content["images"][:2]
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] != second["id"]]
    mine = [a for a in content["annotations"] if a["image_id"] == first["id"]]
    mine[0]["iscrowd"] = 1
    mine[-1]["area"] = 100_000.5
    for entry in content["annotations"]:
        if entry["category_id"] == 13:
            entry["category_id"] = 1
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("count", [3, 60])
def test_equals_pycocotools(tree, odd_truth, tmp_path, count):
    data = CocoImages(str(tree), odd_truth, TRAIN[1], masks=True, test_mode=True)
    samples = guesses(data, torch.Generator().manual_seed(count), count)
    metric = CocoAP(kinds=("bbox", "segm"), out=str(tmp_path / "found"))
    metric.dataset_meta = data.metainfo
    for first in range(0, len(samples), 3):
        metric.process({}, [sample.to_dict() for sample in samples[first : first + 3]])
    metrics = metric.evaluate(len(samples))
    for kind in metric.kinds:
        for name, value in zip(NAMES, reference(odd_truth, tmp_path / f"found.{kind}.json", kind), strict=True):
            assert metrics[f"coco/{kind}_{name}"] == pytest.approx(value, abs=1e-6), name
        assert metrics[f"coco/{kind}_mAP_50"] > 0.05


def test_an_image_without_detections_and_a_class_that_the_data_has_not():
    metric, true = CocoAP(), {"id": 1, "image_id": 1, "category_id": 4, "bbox": [0, 0, 40, 40], "area": 1600}
    metric.dataset_meta = {"classes": ("a",), "category_ids": (4,)}
    meta = {"img_id": 1, "ori_shape": (50, 50), "objects": [{**true, "iscrowd": 0}]}

    def score(*labels):
        count = len(labels)
        found = InstanceData(bboxes=torch.ones(count, 4), scores=torch.ones(count), labels=torch.tensor(labels).long())
        metric.process({}, [BaseDataElement(metainfo=meta, pred_instances=found).to_dict()])
        return metric.evaluate(1)

    assert set(score().values()) == {0.0, -1.0}
    with pytest.raises(ValueError, match=r"num_classes must be 1.*class 1"):
        score(1)
