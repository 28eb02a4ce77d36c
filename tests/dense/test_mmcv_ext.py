"""mmcv's own functions on the stand-in, against torchvision and against formulas written out."""

import importlib
import sys

import pytest
import torch
from torchvision import ops as tv

from soft_vit.dense import mmcv_ext  # isort: split

from mmcv import ops as mmcv_ops

# With a compiled mmcv these tests hold that one against torchvision; only what is refused differs.
stand_in_only = pytest.mark.skipif(
    not str(getattr(sys.modules["mmcv._ext"].__spec__, "origin", "")).endswith("mmcv_ext.py"), reason="mmcv is compiled"
)


def random_boxes(count: int) -> torch.Tensor:
    corner = 60 * torch.rand(count, 2)
    return torch.cat([corner, corner + 1 + 40 * torch.rand(count, 2)], dim=1)


@pytest.mark.parametrize("count", [0, 1, 63, 500])
def test_nms(count):
    boxes, scores = random_boxes(count).round(), torch.rand(count)
    for threshold in (0.0, 0.3, 0.7, 1.0):
        for offset in (0, 1):
            kept, indices = mmcv_ops.nms(boxes, scores, threshold, offset=offset)
            widened = boxes + torch.tensor([0, 0, offset, offset])
            torch.testing.assert_close(indices, tv.nms(widened, scores, threshold))
            torch.testing.assert_close(kept, torch.cat([boxes, scores[:, None]], dim=1)[indices])


def random_rois(images: int, count: int) -> torch.Tensor:
    index = torch.randint(0, images, (count, 1))
    # Some reach over the border of a map of 64 pixels.
    return torch.cat([index, random_boxes(count) - 10], dim=1).double()


ROI_ALIGN = [((7, 7), 0.5, 0, True), ((3, 5), 1.0, 1, False), ((14, 2), 0.25, 3, True), ((7, 7), 0.5, 3, False)]


@pytest.mark.parametrize(("size", "scale", "sampling_ratio", "aligned"), ROI_ALIGN)
def test_roi_align(size, scale, sampling_ratio, aligned):
    rois, maps = random_rois(2, 9), torch.randn(2, 3, 33, 27, dtype=torch.double)
    weights = torch.randn(9, 3, *size, dtype=torch.double)
    results = []
    for function in (mmcv_ops.roi_align, tv.roi_align):
        x = maps.clone().requires_grad_()
        average = ("avg",) if function is mmcv_ops.roi_align else ()
        y = function(x, rois, size, scale, sampling_ratio, *average, aligned)
        (y * weights).sum().backward()
        results.append((y.detach(), x.grad))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_computed_in_float32_and_rounded_once(dtype):
    """As autocast leaves maps to a detector, whose backward pass runs without it."""
    maps, logits = torch.randn(2, 3, 33, 27).to(dtype), torch.randn(9, 4).to(dtype)
    rois, labels = random_rois(2, 9).to(dtype), torch.arange(9) % 5
    functions = [
        (maps, lambda x: mmcv_ops.roi_align(x, rois.to(x), (7, 5), 0.5, 2, "avg", True)),
        (logits, lambda x: mmcv_ops.sigmoid_focal_loss(x, labels, 2.0, 0.25, None, "none")),
    ]
    for start, function in functions:
        results = []
        for x in (start.clone().requires_grad_(), start.float().requires_grad_()):
            y = function(x)
            y.sum().backward()
            results.append((y.detach().to(dtype), x.grad.to(dtype)))
        torch.testing.assert_close(*results, rtol=0, atol=0)
    boxes, scores = random_boxes(63).to(dtype), torch.rand(63).to(dtype)
    kept = mmcv_ops.nms(boxes, scores, 0.5)[1]
    torch.testing.assert_close(kept, tv.nms(boxes.float(), scores.float(), 0.5))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_sigmoid_focal_loss(gamma, weighted):
    logits = torch.randn(11, 4, dtype=torch.double)
    # Label 4 is background.
    labels = torch.tensor([0, 1, 2, 3, 4, 4, 0, 1, 4, 3, 2])
    weight = torch.rand(4, dtype=torch.double) if weighted else None
    one_hot = torch.nn.functional.one_hot(labels, 5)[:, :4].double()
    p = logits.sigmoid()
    positive = -0.25 * (1 - p) ** gamma * p.log() * one_hot
    negative = -0.75 * p**gamma * (1 - p).log() * (1 - one_hot)
    expected = positive + negative
    if weighted:
        expected = expected * torch.cat([weight, weight.new_ones(1)])[labels][:, None]

    def loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
        return mmcv_ops.sigmoid_focal_loss(x, labels, gamma, 0.25, weight, reduction)

    torch.testing.assert_close(loss(logits, "none"), expected)
    torch.testing.assert_close(loss(logits, "mean"), expected.sum() / 11)
    assert torch.autograd.gradcheck(lambda x: loss(x, "sum"), logits.requires_grad_())


@stand_in_only
def test_what_torchvision_lacks_is_refused_by_name():
    with pytest.raises(NotImplementedError, match=r"^softnms\w* needs the compiled mmcv"):
        mmcv_ops.soft_nms(random_boxes(3), torch.rand(3))
    with pytest.raises(NotImplementedError, match="pool_mode='avg'"):
        mmcv_ops.roi_align(torch.randn(1, 1, 8, 8), torch.tensor([[0, 1.0, 1, 6, 6]]), (2, 2), 1.0, 2, "max", True)


@stand_in_only
def test_mmcv_cnn_gets_the_name_that_it_lacks_when_imported_before_mmcv_ops(monkeypatch):
    """As mmpretrain imports it; mmdet asks for the name."""
    transformer = importlib.import_module("mmcv.cnn.bricks.transformer")
    monkeypatch.delattr(transformer, "MultiScaleDeformableAttention", raising=False)
    monkeypatch.delitem(sys.modules, "mmcv._ext")
    assert mmcv_ext.install() is True
    assert transformer.MultiScaleDeformableAttention is mmcv_ops.MultiScaleDeformableAttention
