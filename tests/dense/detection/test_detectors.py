"""torchvision's detectors under MMEngine's interface."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine.runs import NARROW
from mmengine.structures import BaseDataElement, InstanceData
from models.zoo.families import SMALL as FAMILIES

from soft_vit.dense.detection import TorchvisionMaskRCNN, TorchvisionRetinaNet
from soft_vit.predict import ConfigPredictor, Instances

SIZE = (70, 101)
SMALL = {
    TorchvisionRetinaNet: {"head_convs": 1},
    TorchvisionMaskRCNN: {"box_head_dim": 64, "mask_head_dims": (32,), "box_batch_size_per_image": 32},
}


@pytest.fixture(params=SMALL)
def small_detector(request):
    """A function that makes a small detector of each kind for ten classes; options of it and of its backbone."""

    def make(backbone=None, **options):
        backbone = {"model_name": "soft_pico", "max_bottleneck": (7, 7), **NARROW, **(backbone or {})}
        small = {"pyramid_channels": 16, "min_size": 96, "max_size": 112, **SMALL[request.param]}
        return request.param(backbone, 10, **{**small, **options})

    return make


def batch(*objects, sizes=None):
    """Return images of noise. objects: number of objects in each."""
    generator = torch.Generator().manual_seed(0)
    inputs, samples = [], []
    for index, count in enumerate(objects):
        height, width = sizes[index] if sizes else SIZE
        corner = torch.rand(count, 2, generator=generator) * torch.tensor([width, height]) * 0.6
        boxes = torch.cat([corner, corner + 16], 1)
        labels = torch.randint(10, (count,), generator=generator)
        masks = torch.randint(2, (count, height, width), generator=generator, dtype=torch.uint8)
        sample = BaseDataElement(gt_instances=InstanceData(bboxes=boxes, labels=labels, masks=masks))
        inputs.append(torch.randint(256, (3, height, width), generator=generator, dtype=torch.uint8))
        samples.append(sample)
    return {"inputs": inputs, "data_samples": samples}


@pytest.mark.parametrize("objects", [(0, 3), (0, 0)])
def test_losses_are_float32_under_autocast_and_every_parameter_has_a_gradient(small_detector, objects):
    """Also of a batch without objects, or DistributedDataParallel would stop."""
    detector = small_detector().train()
    with torch.autocast("cpu", torch.bfloat16):
        losses = detector(**batch(*objects), mode="loss")
    assert all("loss" in name and value.dtype == torch.float32 for name, value in losses.items())
    detector.parse_losses(losses)[0].backward()
    assert [name for name, parameter in detector.named_parameters() if parameter.grad is None] == []
    assert all(parameter.grad.isfinite().all() for parameter in detector.parameters())


@pytest.mark.parametrize("family", ["vssd", "wfm", "care", "vig", "vig_h"])
def test_a_step_of_retinanet_on_other_families(family):
    """A model of one stride has a pyramid made from its last map."""
    name, small = FAMILIES[family]
    detector = TorchvisionRetinaNet({"model_name": name, **small}, 10, pyramid_channels=32, min_size=96, head_convs=1)
    assert detector.detector.backbone.body.reductions == [8, 16, 32]
    assert [value.shape[-1] for value in detector(batch(1, sizes=[(96, 96)])["inputs"])] == [12, 6, 3, 2, 1]
    detector.parse_losses(detector(**batch(2, 1), mode="loss"))[0].backward()
    assert [name for name, parameter in detector.named_parameters() if parameter.grad is None] == []


def test_predictions_lie_in_the_image_as_given(small_detector):
    detector = small_detector().eval()
    # Scores of an untrained detector are low.
    getattr(detector.detector, "roi_heads", detector.detector).score_thresh = 0.0
    data = batch(1, 1, sizes=[(70, 101), (150, 64)])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        samples = detector(**data, mode="predict")
    assert samples[0] is data["data_samples"][0]
    for sample, (height, width) in zip(samples, [(70, 101), (150, 64)], strict=True):
        found = sample.pred_instances
        assert len(found) > 0
        assert found.bboxes.dtype == found.scores.dtype == torch.float32
        assert (found.bboxes >= 0).all()
        assert (found.bboxes <= torch.tensor([width, height, width, height])).all()
        assert ((found.labels >= 0) & (found.labels < 10)).all()
        if "masks" in found:
            assert (found.masks.dtype, found.masks.shape) == (torch.bool, (len(found), height, width))


def test_a_prediction_does_not_depend_on_the_batch(small_detector):
    """Padding to the largest image of a batch would change what attention sees of the others."""
    detector = small_detector().eval()
    getattr(detector.detector, "roi_heads", detector.detector).score_thresh = 0.0
    data = batch(1, 1, 1, sizes=[(70, 101), (150, 64), (33, 97)])
    together = detector(copy.deepcopy(data["inputs"]), mode="predict")
    for image, found in zip(data["inputs"], together, strict=True):
        (alone,) = detector([image], mode="predict")
        assert len(alone.pred_instances) > 0
        for name, value in alone.pred_instances.items():
            torch.testing.assert_close(found.pred_instances[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint16, torch.int32])
def test_images_of_other_types_are_scaled_by_their_range_or_refused(small_detector, dtype):
    """The segmentor's preprocessor and the classifier's take the same function."""
    detector, (image,) = small_detector().eval(), batch(1)["inputs"]
    scale = 1 if dtype.is_floating_point else torch.iinfo(dtype).max
    given = (image.double() / 255 * scale).round(decimals=0 if scale > 1 else 12).to(dtype)
    expected, found = (detector([one])[0] for one in (image, given))
    # int32 rounds by 2^-32 of the range, and its division by a few units of float32.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    if dtype.is_floating_point:
        torch.testing.assert_close(detector([255 * given])[0], expected, rtol=0, atol=1e-4)
        with pytest.raises(ValueError, match=r"\[0, 1\]"):
            detector([(given - 0.45) / 0.225])


def test_the_first_batch_decides_nothing_about_later_ones(small_detector):
    """Torchvision guesses strides from the first batch, wrongly for a thin image, which is padded to 32 pixels."""
    detector = small_detector().eval()
    (expected,) = copy.deepcopy(detector)(**batch(1), mode="predict")
    detector([torch.zeros(3, 7, 700, dtype=torch.uint8)], mode="predict")
    (found,) = detector(**batch(1), mode="predict")
    for name, value in expected.pred_instances.items():
        torch.testing.assert_close(found.pred_instances[name], value, rtol=0, atol=0)


def test_labels_count_from_zero_inside_and_outside(small_detector):
    """A detector with a large bias for the last class predicts that class, which it learns as its own last."""
    detector = small_detector().eval()
    retinanet = isinstance(detector, TorchvisionRetinaNet)
    inside = detector.detector
    layer = inside.head.classification_head.cls_logits if retinanet else inside.roi_heads.box_predictor.cls_score
    with torch.no_grad():
        # Nine anchors, or a background.
        (layer.bias.view(9, 10)[:, 9] if retinanet else layer.bias[10:]).add_(20)
        (sample,) = detector(**batch(1), mode="predict")
    assert len(sample.pred_instances) > 0
    assert (sample.pred_instances.labels == 9).all()
    sample.gt_instances.labels[:] = 9
    assert detector._target(sample)["labels"].tolist() == [9 if retinanet else 10]


def test_images_are_padded_to_the_size_of_a_backbone_that_knows_one(small_detector):
    swin = {"model_name": "swin_tiny_patch4_window7_224", "img_size": 96, "depths": (1, 1, 1, 1), "embed_dim": 24}
    others = {"max_bottleneck": None, "embed_dims": None, "num_heads": (1, 2, 3, 4)}
    detector = small_detector({**others, **swin}, size_divisible=96, max_size=96)
    assert detector(batch(1, sizes=[(48, 96)])["inputs"])


MISTAKES = [({"score_tresh": 0.1}, "score_tresh"), ({"backbone": {"out_indices": (1, 3)}}, "strides.* 8, 32")]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes_are_refused_in_one_sentence(small_detector, options, message):
    with pytest.raises(ValueError, match=message):
        small_detector(**options)


class CutBoxes(ConfigPredictor):
    """Finds what a tile shows of true boxes `[n, 4]` of one class; an image is its own tile."""

    def __init__(self, boxes: np.ndarray, tiles: int, overlap: float) -> None:
        self.boxes, self.tiles, self.overlap, self.names = boxes, tiles, overlap, ["box"]

    def _predict(self, tiles):
        (tile,) = np.array(tiles, float)
        seen = np.hstack([np.maximum(self.boxes[:, :2], tile[:2]), np.minimum(self.boxes[:, 2:], tile[2:])])
        seen = seen[(seen[:, 2:] - seen[:, :2] > 1).all(1)] - np.tile(tile[:2], 2)
        # The smallest parts have the highest scores.
        scores = 1 / (1 + (seen[:, 2:] - seen[:, :2]).prod(1))
        return [Instances(seen, [0] * len(seen), ["box"] * len(seen), scores.tolist())]


@pytest.mark.parametrize(("tiles", "overlap"), [(128, 0.4), (200, 0.25), (128, 0.0), (900, 0.2)])
def test_objects_over_tiles_are_found_once_and_whole(tiles, overlap):
    """Also inside of others; without any overlap, every part is an object."""
    stream, corners = np.random.default_rng(0), np.stack(np.mgrid[0:8, 0:6], -1).reshape(-1, 2) * 100.0
    low = corners + stream.uniform(0, 20, corners.shape)
    outer = np.hstack([low, low + stream.uniform(20, min(tiles * (overlap - 0.06), 75) if overlap else 75, low.shape)])
    inner = np.hstack([low + 3, low + 10])
    boxes = np.vstack([outer, inner])
    image = SimpleNamespace(size=(800, 600), crop=lambda tile: tile)
    found = CutBoxes(boxes, tiles, overlap)._over_tiles(image)
    assert found.scores == sorted(found.scores, reverse=True)
    if overlap:
        assert np.array_equal(np.unique(found.boxes, axis=0), np.unique(boxes, axis=0))
    assert (len(found.boxes) == len(boxes)) == bool(overlap)
