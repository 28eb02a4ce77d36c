"""Object detection on any timm backbone: torchvision's detectors, COCO data and COCO's average precision.

Importing it registers the classes for configs.
"""

from soft_vit.dense import report  # noqa: F401  registers its hook
from soft_vit.dense.class_names import ClassNamesHook
from soft_vit.dense.detection.coco_ap import CocoAP
from soft_vit.dense.detection.coco_images import CocoImages
from soft_vit.dense.detection.mask_rcnn import TorchvisionMaskRCNN
from soft_vit.dense.detection.retinanet import TorchvisionRetinaNet

__all__ = ["ClassNamesHook", "CocoAP", "CocoImages", "TorchvisionMaskRCNN", "TorchvisionRetinaNet"]
