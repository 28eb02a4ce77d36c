"""RetinaNet (Lin et al., arXiv 1708.02002): torchvision's, on any timm backbone."""

from collections.abc import Sequence
from typing import Any

from torchvision.models.detection import RetinaNet

from soft_vit.dense.detection.detector import FeaturePyramid, TorchvisionDetector, check_options, make_anchors
from soft_vit.registry import MODELS, register


@register(MODELS)
class TorchvisionRetinaNet(TorchvisionDetector):
    """torchvision's RetinaNet on a timm model's maps of stride 8, 16 and 32, with P6 and P7 convolved from the last.

    backbone: arguments of `TimmFeatures`. num_classes: without a background. pyramid_channels: of every level. sizes:
    of the anchors, see `make_anchors`; by default 32 to 813 pixels, nine per location. head_convs: convolutions of
    each head, 1 to 4. options: torchvision's, such as min_size (of the shorter side after resizing, 800 pixels;
    training draws from several, testing takes the last), max_size (of the longer side, 1333), image_mean and image_std
    (of values in [0, 1], by default those of the backbone's weights), size_divisible, score_thresh, nms_thresh,
    detections_per_img, topk_candidates, fg_iou_thresh and bg_iou_thresh. Raises ValueError for any other.

    The heads have the paper's shapes. torchvision divides the loss of each image by its number of positive anchors;
    others divide the loss of a batch by the batch's number.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        num_classes: int,
        *,
        pyramid_channels: int = 256,
        sizes: Sequence[float | Sequence[float]] | None = None,
        head_convs: int = 4,
        data_preprocessor: dict | None = None,
        **options: Any,
    ) -> None:
        check_options(RetinaNet, options)
        pyramid = FeaturePyramid(backbone, channels=pyramid_channels, stride=8, extra="conv")
        anchors = make_anchors(sizes, pyramid, octaves=3, scale=4)
        detector = RetinaNet(pyramid, num_classes, anchor_generator=anchors, **{**pyramid.colours, **options})
        for head in (detector.head.classification_head, detector.head.regression_head):
            head.conv = head.conv[:head_convs]
        how = dict(heads=[detector.head], data_preprocessor=data_preprocessor)
        super().__init__(detector, num_classes=num_classes, first_label=0, **how)
