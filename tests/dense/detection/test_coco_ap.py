"""Average precision against pycocotools on the same detections."""

import json

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from soft_vit.dense.detection import CocoAP, CocoImages
from soft_vit.dense.detection.coco_ap import NAMES

TRAIN = ("annotations/instances_train2017.json", "train2017")


def guesses(data, generator, count):
    """Samples with detections: true objects moved a little, some under a wrong class, and some boxes of chance."""
    samples = []
    for index in range(len(data)):
        sample = data[index]["data_samples"]
        height, width = sample.ori_shape
        objects = sample.objects if count else []
        true = torch.tensor([entry["bbox"] for entry in objects], dtype=torch.float32).reshape(-1, 4)
        boxes = torch.cat([true[:, :2], true[:, :2] + true[:, 2:]], 1)
        boxes = boxes + torch.randn(boxes.shape, generator=generator) * 2
        x, y = (torch.rand(count, 2, generator=generator) * 0.7 * side for side in (width, height))
        sides = torch.rand(count, 2, generator=generator) * 30 + 5
        chance = torch.stack([x[:, 0], y[:, 0], x[:, 0] + sides[:, 0], y[:, 0] + sides[:, 1]], 1)
        ids = data.metainfo["category_ids"]
        labels = torch.tensor([ids.index(entry["category_id"]) for entry in objects], dtype=torch.int64)
        wrong = torch.rand(len(labels), generator=generator) < 0.2
        labels = torch.where(wrong, (labels + 1) % len(ids), labels)
        labels = torch.cat([labels, torch.randint(len(ids), (count,), generator=generator)])
        boxes = torch.cat([boxes, chance])
        rows, columns = torch.arange(height)[None, :, None], torch.arange(width)[None, None]
        x0, y0, x1, y1 = boxes[:, :, None, None].unbind(1)
        masks = (columns >= x0) & (columns < x1) & (rows >= y0) & (rows < y1)
        scores = torch.rand(len(boxes), generator=generator)
        # Neither all before the boxes of chance nor spread among them.
        scores[: len(true)] += 0.7
        sample.pred_instances = InstanceData(bboxes=boxes, scores=scores, labels=labels, masks=masks)
        samples.append(sample)
    return samples


def measure(data, samples, **options):
    metric = CocoAP(**options)
    metric.dataset_meta = data.metainfo
    for first in range(0, len(samples), 3):
        metric.process({}, [sample.to_dict() for sample in samples[first : first + 3]])
    return metric.evaluate(len(samples))


def reference(truth, detections, kind):
    """COCO's own figures for a file of detections."""
    coco = COCO(str(truth))
    found = json.loads(detections.read_text())
    if found:
        results = coco.loadRes(found)
    else:
        results = COCO()
        results.dataset = {**coco.dataset, "annotations": []}
        results.createIndex()
    evaluation = COCOeval(coco, results, kind)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return evaluation


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


@pytest.mark.parametrize("count", [0, 3, 60])
@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_equals_pycocotools(tree, odd_truth, tmp_path, kind, count):
    data = CocoImages(str(tree), odd_truth, TRAIN[1], masks=True, test_mode=True)
    samples = guesses(data, torch.Generator().manual_seed(count), count)
    metrics = measure(data, samples, kinds=kind, out=str(tmp_path / "found"))
    evaluation = reference(odd_truth, tmp_path / f"found.{kind}.json", kind)
    for name, value in zip(NAMES, evaluation.stats, strict=True):
        assert metrics[f"coco/{kind}_{name}"] == pytest.approx(value, abs=1e-6), name
    if count:
        assert metrics[f"coco/{kind}_mAP_50"] > 0.05


def test_a_class_that_the_data_has_not():
    metric = CocoAP()
    metric.dataset_meta = {"classes": ("a", "b"), "category_ids": (3, 7)}
    found = InstanceData(bboxes=torch.ones(1, 4), scores=torch.ones(1), labels=torch.tensor([2]))
    sample = BaseDataElement(metainfo={"img_id": 1, "ori_shape": (4, 4), "objects": []}, pred_instances=found)
    metric.process({}, [sample.to_dict()])
    with pytest.raises(ValueError, match=r"num_classes must be 2.*class 2"):
        metric.evaluate(1)


def test_an_empty_image_alone_has_no_precision():
    metric = CocoAP()
    metric.dataset_meta = {"classes": ("a",), "category_ids": (4,)}
    entry = {"id": 1, "shape": (5, 5), "objects": [], "boxes": np.zeros((0, 4)), "scores": np.zeros(0)}
    metrics = metric.compute_metrics([{**entry, "labels": np.zeros(0, int)}])
    assert set(metrics.values()) == {-1.0}
