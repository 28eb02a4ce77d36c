"""COCO's images and its average precision."""

import json
import shutil

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torchvision.ops import box_convert

from soft_vit.dense.detection import CocoAP, CocoImages
from soft_vit.dense.detection.coco_ap import NAMES

# COCO data through MMEngine's loader: targets, transforms, and what happens to images that cannot be read.


TRAIN = ("annotations/instances_train2017.json", "train2017")


def change(root, function):
    path = root / TRAIN[0]
    content = json.loads(path.read_text())
    function(content)
    path.write_text(json.dumps(content))


@pytest.fixture
def copy(tree, tmp_path):
    return shutil.copytree(tree, tmp_path / "coco")


def test_targets_are_those_of_the_reference(tree):
    data = CocoImages(str(tree), *TRAIN, masks=True, transforms=[])
    reference = COCO(str(tree / TRAIN[0]))
    seen = 0
    for sample in data:
        inputs, target = sample["inputs"], sample["data_samples"]
        pixels = np.asarray(Image.open(tree / TRAIN[1] / target.img_path))
        np.testing.assert_array_equal(inputs.permute(1, 2, 0).numpy(), pixels)
        expected = reference.loadAnns(reference.getAnnIds(target.img_id, iscrowd=False))
        objects = target.gt_instances
        ids = [data.metainfo["category_ids"][label] for label in objects.labels]
        assert ids == [entry["category_id"] for entry in expected]
        boxes = torch.tensor([entry["bbox"] for entry in expected])
        torch.testing.assert_close(objects.bboxes, box_convert(boxes, "xywh", "xyxy").float(), rtol=0, atol=0)
        np.testing.assert_array_equal(objects.masks.numpy(), np.stack([reference.annToMask(a) for a in expected]))
        seen += len(expected)
    assert seen == sum(not entry["iscrowd"] for entry in reference.dataset["annotations"])


def test_a_flip_moves_image_boxes_and_masks_together(tree):
    flip = [{"type": "RandomHorizontalFlip", "p": 1.0}]
    plain, flipped = (CocoImages(str(tree), *TRAIN, masks=True, transforms=steps)[0] for steps in ([], flip))
    torch.testing.assert_close(flipped["inputs"], plain["inputs"].flip(-1))
    before, after = plain["data_samples"].gt_instances, flipped["data_samples"].gt_instances
    torch.testing.assert_close(after.masks, before.masks.flip(-1))
    x0, y0, x1, y1 = before.bboxes.unbind(1)
    width = plain["inputs"].shape[-1]
    torch.testing.assert_close(after.bboxes, torch.stack([width - x1, y0, width - x0, y1], 1))


TRANSFORMS = [
    [{"type": "RandomCrop", "size": [20, 20]}],
    [{"type": "RandomIoUCrop"}],
    [{"type": "RandomZoomOut"}, {"type": "RandomPhotometricDistort", "p": 1.0}],
    [{"type": "RandomApply", "transforms": [{"type": "RandomRotation", "degrees": [90, 90]}], "p": 1.0}],
]


@pytest.mark.parametrize("transforms", TRANSFORMS)
def test_transforms_leave_boxes_inside_and_not_empty(tree, transforms):
    for sample in CocoImages(str(tree), *TRAIN, masks=True, transforms=transforms):
        objects = sample["data_samples"].gt_instances
        height, width = sample["inputs"].shape[-2:]
        low, high = objects.bboxes.split(2, 1)
        assert ((low >= 0) & (low < high) & (high <= torch.tensor([width, height]))).all()
        assert len(objects.labels) == len(objects.masks) == len(low)
        assert objects.masks.shape[1:] == (height, width)
        assert sample["inputs"].dtype == torch.uint8
        assert type(sample["inputs"]) is type(objects.masks) is type(objects.bboxes) is torch.Tensor


def test_empty_images_are_left_out_on_demand(copy):
    change(copy, lambda content: [entry.update(image_id=16) for entry in content["annotations"]])
    assert len(CocoImages(str(copy), *TRAIN)) == 1
    whole = CocoImages(str(copy), *TRAIN, masks=True, filter_empty=False)
    assert len(whole) == 16
    assert whole[0]["data_samples"].gt_instances.masks.shape == (0, 96, 112)
    assert len(CocoImages(str(copy), *TRAIN, test_mode=True)) == 16


def test_bad_images_are_skipped_in_training_and_black_in_a_test(copy):
    folder = copy / TRAIN[1]
    names = sorted(path.name for path in folder.iterdir())
    (folder / names[2]).write_bytes(b"no image")
    Image.new("RGB", (7, 5)).save(folder / names[3])
    (folder / names[4]).unlink()
    train = CocoImages(str(copy), *TRAIN, filter_empty=False)
    assert len(train) == 15
    assert train[2]["data_samples"].img_path == names[5]
    assert train.bad_images() == [2, 3]
    assert names[2] in train.why_bad(2)
    assert train.why_bad(3).endswith("has 7 x 5 pixels and is annotated as 112 x 96")

    test = CocoImages(str(copy), *TRAIN, test_mode=True)
    assert len(test) == 16
    assert all(torch.equal(test[i]["inputs"], torch.zeros(3, 96, 112, dtype=torch.uint8)) for i in (2, 3, 4))
    assert test.bad_images() == [2, 3, 4]
    assert test.why_bad(4).startswith(f"{names[4]}: ")


@pytest.mark.parametrize("upright", [None, False, True])
def test_boxes_lie_on_the_pixels_that_were_annotated(copy, upright):
    """An image that its EXIF data turn upside down is right or refused by name, in a test too."""
    path = sorted((copy / TRAIN[1]).iterdir())[0]
    exif, stored, data = Image.Exif(), np.asarray(Image.open(path)), path.read_bytes()
    exif[0x0112] = 3
    segment = exif.tobytes()
    path.write_bytes(data[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + data[2:])
    for test_mode in (False, True):
        data = CocoImages(str(copy), *TRAIN, transforms=[], test_mode=test_mode, filter_empty=False, upright=upright)
        pixels = data[0]["inputs"].permute(1, 2, 0).numpy()
        if upright is None:
            assert path.name in data.why_bad(0)
            assert "upright" in data.why_bad(0)
        else:
            np.testing.assert_array_equal(pixels, np.rot90(stored, 2) if upright else stored)


def test_16_bits_are_scaled_by_the_option(copy):
    path = sorted((copy / TRAIN[1]).iterdir())[0]
    # A name with the ending of another format is read as what it is.
    Image.fromarray(np.full((96, 112), 4095, np.uint16)).save(path, "PNG")
    assert "bits=12" in CocoImages(str(copy), *TRAIN, filter_empty=False).why_bad(0)
    assert (CocoImages(str(copy), *TRAIN, test_mode=True, bits=12)[0]["inputs"] == 255).all()


def test_an_object_without_a_pixel_in_the_crop_is_no_target(copy):
    """Of an L in the corner, the crop holds a part of the box but none of its mask."""

    def corner(content):
        entry = content["annotations"][0]
        arms = [[0, 0, 90, 0, 90, 6, 0, 6], [0, 0, 6, 0, 6, 90, 0, 90]]
        entry.update(bbox=[0, 0, 90, 90], area=1044, segmentation=arms, image_id=content["images"][0]["id"], iscrowd=0)
        content["annotations"] = [entry]

    change(copy, corner)
    crop = [{"type": "CenterCrop", "size": [40, 40]}]
    objects = {masks: CocoImages(str(copy), *TRAIN, masks=masks, transforms=crop)[0] for masks in (False, True)}
    assert [len(one["data_samples"].gt_instances.bboxes) for one in objects.values()] == [1, 0]


def test_images_are_read_from_an_archive(copy):
    plain = CocoImages(str(copy), *TRAIN, transforms=[])
    shutil.make_archive(str(copy / "packed"), "zip", copy / TRAIN[1])
    # File names may begin with the folder of the images.
    change(copy, lambda content: [one.update(file_name=f"packed/{one['file_name']}") for one in content["images"]])
    packed = CocoImages(str(copy), TRAIN[0], "packed", transforms=[])
    assert len(packed) == len(plain)
    torch.testing.assert_close(packed[0]["inputs"], plain[0]["inputs"])


def test_unusable_data_is_refused_in_one_sentence(copy):
    cases = [([], "data_root"), ([str(copy), *TRAIN], "object to train on")]
    change(copy, lambda content: content["annotations"].clear())
    for arguments, message in cases:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            CocoImages(*arguments)


def test_a_file_outside_of_the_folder_is_never_read(copy):
    (copy / "secret.jpg").write_bytes(next((copy / TRAIN[1]).iterdir()).read_bytes())
    change(copy, lambda content: content["images"][0].update(file_name="../secret.jpg"))
    assert len(CocoImages(str(copy), *TRAIN, filter_empty=False)) == 15
    test = CocoImages(str(copy), *TRAIN, test_mode=True)
    assert not test[0]["inputs"].any()
    assert "secret" in test.why_bad(0)


# Average precision against pycocotools on the same detections.


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
    metric = CocoAP(kinds=("bbox", "segm"))
    metric.dataset_meta = data.metainfo
    for first in range(0, len(samples), 3):
        metric.process({}, [sample.to_dict() for sample in samples[first : first + 3]])
    for kind in metric.kinds:
        (tmp_path / f"found.{kind}.json").write_text(json.dumps(metric._detections(metric.results, kind)))
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
    with pytest.raises(ValueError, match="box"):
        CocoAP("box")
