"""Detectors and segmentors as they are exported: what is left to do gives torchvision's own results."""

import pytest
import torch
from torchvision.ops import batched_nms

from soft_vit.dense.detection import TorchvisionMaskRCNN, TorchvisionRetinaNet
from soft_vit.dense.segmentation import TimmSegmentor
from soft_vit.export import ExportModel, export, load_export_model
from soft_vit.export.dense import dense_module
from soft_vit.export.verified_file import relative_error
from soft_vit.weights.files import RESOURCES

NARROW = dict(embed_dims=(8, 16, 16, 32), num_heads=(1, 1, 1, 1), depths=(1, 1, 1, 1), newton_iters=2)
BACKBONE = dict(model_name="soft_pico", img_size=64, max_bottleneck=(7, 7), **NARROW)
SIZE = dict(min_size=64, max_size=96, image_mean=[0.0] * 3, image_std=[1.0] * 3)


def detector(cls, **options):
    torch.manual_seed(0)
    return cls(BACKBONE, 3, pyramid_channels=8, **SIZE, **options).eval().requires_grad_(False)


def retinanet():
    model = detector(TorchvisionRetinaNet, head_convs=1, score_thresh=0.0, topk_candidates=9999)
    # Scores whose order is clear.
    torch.nn.init.normal_(model.detector.head.classification_head.cls_logits.weight)
    return model


def mask_rcnn():
    model = detector(TorchvisionMaskRCNN, box_head_dim=8, mask_head_dims=(8,), box_score_thresh=0.0)
    torch.nn.init.normal_(model.detector.rpn.head.cls_logits.weight)
    return model


def segmentor(kind: str = "fpn", **options):
    return TimmSegmentor(BACKBONE, dict(kind=kind, **options), 5).eval().requires_grad_(False)


def upernet():
    return segmentor("upernet", channels=16)


def kept(boxes, scores, model):
    """Return the best boxes of each class, of those of all classes `[N, K, 4]` and `[N, K]`."""
    labels = torch.arange(scores.shape[1]).expand_as(scores).flatten()
    chosen = batched_nms(boxes.flatten(0, 1), scores.flatten(), labels, model.nms_thresh)[: model.detections_per_img]
    return boxes.flatten(0, 1)[chosen], scores.flatten()[chosen], labels[chosen]


def assert_detected(given, expected, first_label):
    for name, value in zip(("boxes", "scores", "labels"), given, strict=True):
        torch.testing.assert_close(value, expected[name] - first_label * (name == "labels"), rtol=1e-4, atol=1e-4)


def test_boxes_of_retinanet():
    """Of an image that the detector pads to 96 columns."""
    model, image = retinanet(), torch.rand(1, 3, 64, 88)
    boxes, scores = dense_module(model)(image)
    model = model.detector
    assert_detected(kept(boxes[0][:, None].expand(-1, 3, -1), scores[0], model), model(list(image))[0], 0)


def test_boxes_of_mask_rcnn():
    """Suppressed by objectness in each level, and then by class."""
    model, images = mask_rcnn(), torch.rand(2, 3, 64, 88)
    module, model = dense_module(model), model.detector
    proposals, objectness, boxes, scores = outputs = module(images)
    # Strides 4 to 64, with three anchors for each place.
    counts = [min(3 * -(-64 // side) * -(-96 // side), 1000) for side in (4, 8, 16, 32, 64)]
    levels = torch.arange(5).repeat_interleave(torch.tensor(counts))
    for i, image in enumerate(images):
        first = batched_nms(proposals[i], objectness[i], levels, model.rpn.nms_thresh)[:1000]
        assert_detected(kept(boxes[i][first], scores[i][first], model.roi_heads), model([image])[0], 1)
    order = torch.randperm(counts[0])
    order = torch.cat([order, torch.arange(counts[0], sum(counts))])
    swapped = [outputs[0][:, order], outputs[1], outputs[2][:, order], outputs[3][:, order]]
    assert relative_error(swapped, list(module(images, given=swapped))) <= 1e-5
    swapped[0] = swapped[0] + 1
    assert relative_error(swapped, list(module(images, given=swapped))) > 1e-3


def test_config_of_a_segmentor(tmp_path):
    config = tmp_path / "config.py"
    own = f"model = dict(backbone=dict(_delete_=True, **{BACKBONE}), auxiliary=None, class_weight=None, num_classes=5)"
    base = RESOURCES / "configs/segmentation/upernet_soft_pico_shapes.py"
    config.write_text(f"_base_ = {str(base)!r}\n{own}\nmodel['test_cfg'] = dict(crop_size=(96, 64))\n")
    model = TimmSegmentor(BACKBONE, dict(kind="upernet", channels=32), 5)
    torch.save({"state_dict": model.state_dict(), "meta": {}}, tmp_path / "weights.pth")
    source = load_export_model(config=config, checkpoint=tmp_path / "weights.pth")
    assert (source.name, source.input_size, source.outputs) == ("TimmSegmentor of soft_pico", (3, 96, 64), ("scores",))
    assert source.model(source.images(2, 96, 64)).shape == (2, 5, 96, 64)
    with pytest.raises(ValueError, match="classifier"):
        load_export_model(config=config, checkpoint=tmp_path / "weights.pth", stages=[1])


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "openvino"])
@pytest.mark.parametrize("make", [retinanet, mask_rcnn, segmentor, upernet])
def test_file(make, format, tmp_path):
    pytest.importorskip({"onnx": "onnxruntime"}.get(format, format))
    module = dense_module(make())
    how = dict(mean=(0.5,) * 3, std=(0.25,) * 3, outputs=module.outputs, needs_given=make is mask_rcnn)
    source = ExportModel("dense", module, (3, 64, 96), **how)
    export(source, tmp_path / f"model.{'onnx' if format == 'onnx' else 'xml'}", format, report=lambda line: None)


@pytest.mark.slow
@pytest.mark.parametrize("make", [retinanet, segmentor, upernet])
def test_any_size(make, tmp_path):
    pytest.importorskip("onnxruntime")
    module = dense_module(make())
    least = getattr(module, "min_side", 64)
    how = dict(mean=(0.5,) * 3, std=(0.25,) * 3, outputs=module.outputs, min_side=least)
    export(ExportModel("dense", module, (3, 288, 352), **how), tmp_path / "model.onnx", "onnx", any_size=True)
