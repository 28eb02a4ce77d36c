"""Mask R-CNN (He et al., arXiv 1703.06870): torchvision's, on any timm backbone."""

from collections.abc import Sequence
from typing import Any

from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

from soft_vit.dense.detection.detector import FeaturePyramid, TorchvisionDetector, check_options, make_anchors, roi_pool
from soft_vit.registry import MODELS, register

# Side of the map pooled for the class and for the mask of a box.
_BOX_SIZE, _MASK_SIZE = 7, 14


@register(MODELS)
class TorchvisionMaskRCNN(TorchvisionDetector):
    """torchvision's Mask R-CNN on a timm model's maps of stride 4 to 32, with P6 subsampled from P5.

    backbone: arguments of `TimmFeatures`. num_classes: without the background. pyramid_channels: of every level. sizes:
    of the anchors, see `make_anchors`; by default 32 to 512 pixels, with three per location. box_head_dim: width of
    the two layers that classify a box. mask_head_dims: channels of the mask head's convolutions. options: those of
    torchvision, such as min_size (of the shorter side after resizing, 800 pixels; training draws from several, testing
    takes the last), max_size (of the longer side, 1333), image_mean and image_std (of values in [0, 1], by default
    those of the backbone's weights), size_divisible, box_score_thresh, box_nms_thresh, box_detections_per_img and
    rpn_pre_nms_top_n_train. Raises ValueError for any other.

    The last layers also predict a box and a mask for the background: 4 x 1025 + 257 of 33 M parameters.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        num_classes: int,
        *,
        pyramid_channels: int = 256,
        sizes: Sequence[float | Sequence[float]] | None = None,
        box_head_dim: int = 1024,
        mask_head_dims: Sequence[int] = (256, 256, 256, 256),
        data_preprocessor: dict | None = None,
        **options: Any,
    ) -> None:
        check_options(MaskRCNN, options)
        pyramid = FeaturePyramid(backbone, channels=pyramid_channels, stride=4, extra="pool")
        detector = MaskRCNN(
            pyramid,
            rpn_anchor_generator=make_anchors(sizes, pyramid, octaves=1, scale=8),
            box_roi_pool=roi_pool(pyramid, _BOX_SIZE),
            box_head=TwoMLPHead(pyramid_channels * _BOX_SIZE**2, box_head_dim),
            box_predictor=FastRCNNPredictor(box_head_dim, num_classes + 1),
            mask_roi_pool=roi_pool(pyramid, _MASK_SIZE),
            mask_head=MaskRCNNHeads(pyramid_channels, list(mask_head_dims), dilation=1),
            mask_predictor=MaskRCNNPredictor(mask_head_dims[-1], mask_head_dims[-1], num_classes + 1),
            **{**pyramid.colours, **options},
        )
        heads = [detector.rpn.head, detector.roi_heads.box_predictor, detector.roi_heads.mask_predictor]
        how = dict(heads=heads, data_preprocessor=data_preprocessor)
        super().__init__(detector, num_classes=num_classes, first_label=1, **how)
