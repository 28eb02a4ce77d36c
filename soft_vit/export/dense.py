"""Detectors and segmentors of a config as modules of normalised images, without suppression of overlapping boxes.

Letters: B images, H and W their height and width, N boxes, K classes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from timm.layers import to_2tuple
from torch import Tensor, nn
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import concat_box_prediction_layers
from torchvision.ops import clip_boxes_to_image, roi_align

from soft_vit.dense.detection.detector import TorchvisionDetector
from soft_vit.dense.segmentation import TimmSegmentor
from soft_vit.engine.models.notes import normalisation_of
from soft_vit.engine.models.timm_model import backbone_spec
from soft_vit.export.model import ExportModel
from soft_vit.models.base import pad_to_multiple
from soft_vit.predict import ConfigPredictor


class PixelScores(nn.Module):
    """Scores `[B, K, H, W]` of the pixels of images `[B, 3, H, W]`, of a segmentor."""

    outputs = ("scores",)

    def __init__(self, segmentor: TimmSegmentor) -> None:
        super().__init__()
        self.segmentor = segmentor

    def forward(self, x: Tensor) -> Tensor:
        return self.segmentor.scores(x)


def decoded(coder: Any, deltas: Tensor, boxes: Tensor, x: Tensor) -> Tensor:
    """Return boxes `[B, N, M, 4]` inside the images x, from deltas `[B, N, 4 M]` and boxes `[B or 1, N, 4]`."""
    boxes = boxes.expand(deltas.shape[0], -1, -1).flatten(0, 1)
    found = coder.decode_single(deltas.flatten(0, 1), boxes).unflatten(0, deltas.shape[:2]).unflatten(2, (-1, 4))
    return clip_boxes_to_image(found, tuple(x.shape[2:]))


class DetectorBoxes(nn.Module):
    """What files of detectors share."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def maps_and_anchors(self, x: Tensor, generator: nn.Module) -> tuple[list[Tensor], Tensor]:
        """Return the maps of images, padded as the detector pads them, and the anchors `[1, N, 4]` of all levels."""
        x = pad_to_multiple(x, self.detector.transform.size_divisible)
        maps = list(self.detector.backbone(x).values())
        return maps, generator(ImageList(x, [tuple(x.shape[2:])]), maps)[0][None]


class RetinaNetBoxes(DetectorBoxes):
    """Boxes `[B, N, 4]` (x0, y0, x1, y1) in pixels, and scores `[B, N, K]`, of images `[B, 3, H, W]`."""

    outputs = ("boxes", "scores")
    # Two places in the last map, of stride 128.
    min_side = 160

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps, anchors = self.maps_and_anchors(x, self.detector.anchor_generator)
        found = self.detector.head(maps)
        boxes = decoded(self.detector.box_coder, found["bbox_regression"], anchors, x)
        return boxes.squeeze(2), found["cls_logits"].sigmoid()


class MaskRCNNBoxes(DetectorBoxes):
    """Boxes of all proposals of Mask R-CNN, without masks.

    Images `[B, 3, H, W]` become proposals `[B, N, 4]` and their objectness `[B, N]`, the best of each level, and boxes
    `[B, N, K, 4]` and scores `[B, N, K]` of each proposal. Boxes are (x0, y0, x1, y1) in pixels.
    """

    outputs = ("proposals", "objectness", "boxes", "scores")

    def forward(self, x: Tensor, given: Sequence[Tensor] | None = None) -> tuple[Tensor, ...]:
        """Return proposals, objectness, boxes and scores.

        given: those of a file, for which the result is what they must be. Rounding may exchange proposals of nearly
        equal objectness, so proposals are the nearest ones, and boxes and scores those of the given proposals.
        """
        maps, proposals, objectness = self.proposed(x)
        if given is None:
            return proposals, objectness, *self.classified(x, maps, proposals)
        _, more, values = self.proposed(x, extra=32)
        points = (torch.cat([boxes, scores[..., None]], 2) for boxes, scores in ((given[0], given[1]), (more, values)))
        # By products of matrices, distances of equal boxes would not be 0.
        distances = torch.cdist(*points, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = more.gather(1, distances.argmin(2)[..., None].expand(-1, -1, 4))
        return nearest, objectness, *self.classified(x, maps, given[0])

    def proposed(self, x: Tensor, extra: int = 0) -> tuple[list[Tensor], Tensor, Tensor]:
        """Return the maps, proposals and their objectness; extra: more proposals of each level than the model takes."""
        rpn = self.detector.rpn
        maps, anchors = self.maps_and_anchors(x, rpn.anchor_generator)
        by_level, deltas = rpn.head(maps)
        logits, deltas = (y.unflatten(0, (x.shape[0], -1)) for y in concat_box_prediction_layers(by_level, deltas))
        boxes = decoded(rpn.box_coder, deltas, anchors, x).squeeze(2)
        chosen, start = [], 0
        for level in logits.squeeze(2).split([each[0].numel() for each in by_level], 1):
            chosen.append(level.topk(min(rpn.pre_nms_top_n() + extra, level.shape[1]), 1).indices + start)
            start += level.shape[1]
        index = torch.cat(chosen, 1)
        return maps, boxes.gather(1, index[..., None].expand(-1, -1, 4)), logits.squeeze(2).gather(1, index).sigmoid()

    def classified(self, x: Tensor, maps: list[Tensor], proposals: Tensor) -> tuple[Tensor, Tensor]:
        """Return boxes `[B, N, K, 4]` and scores `[B, N, K]` of proposals."""
        heads = self.detector.roi_heads
        found = heads.box_predictor(heads.box_head(self.pooled(maps, proposals)))
        logits, deltas = (each.unflatten(0, proposals.shape[:2]) for each in found)
        return decoded(heads.box_coder, deltas, proposals, x)[:, :, 1:], logits.softmax(-1)[..., 1:]

    def pooled(self, maps: Sequence[Tensor], boxes: Tensor) -> Tensor:
        """Return the pooled map of each of boxes `[B, N, 4]`, taken from the level of its size, in a fixed graph."""
        pool = self.detector.roi_heads.box_roi_pool
        image = torch.arange(boxes.shape[0], dtype=boxes.dtype)[:, None, None].expand(-1, boxes.shape[1], 1)
        rois = torch.cat([image, boxes], 2).flatten(0, 1)
        levels = pool.map_levels([rois[:, 1:]])[:, None, None, None]
        result: Tensor | float = 0.0
        for level, scale in enumerate(pool.scales):
            found = roi_align(maps[level], rois, pool.output_size, scale, pool.sampling_ratio)
            result = result + found * (levels == level)
        return result


def dense_module(model: TimmSegmentor | TorchvisionDetector) -> nn.Module:
    """Return a detector or a segmentor as a module of normalised images."""
    if isinstance(model, TimmSegmentor):
        return PixelScores(model)
    return (RetinaNetBoxes if isinstance(model.detector, RetinaNet) else MaskRCNNBoxes)(model.detector)


def dense_export_model(predictor: ConfigPredictor, img_size: int | tuple[int, int] | None) -> ExportModel:
    """Return the segmentor or detector of a predictor for images of one size, see `load_export_model`."""
    model, network = predictor.model, dense_module(predictor.model)
    if isinstance(network, PixelScores):
        side = model.test_cfg["crop_size"]
    else:
        side = -(-model.detector.transform.min_size[-1] // 32) * 32
    return ExportModel(
        name=f"{type(model).__name__} of {backbone_spec(model).model}",
        model=network.eval().requires_grad_(False),
        input_size=(3, *to_2tuple(img_size or side)),
        **normalisation_of(model),
        classes=tuple(predictor.names),
        outputs=network.outputs,
        notes=tuple(predictor.notes),
        needs_given=isinstance(network, MaskRCNNBoxes),
        min_side=getattr(network, "min_side", 64),
    )
