"""Semantic segmentation on any timm backbone.

Importing it registers the classes for configs.
"""

from soft_vit.dense import report  # noqa: F401  registers its hook
from soft_vit.dense.class_names import ClassNamesHook
from soft_vit.dense.segmentation import transforms  # noqa: F401  registers them
from soft_vit.dense.segmentation.dataset import LabelMapTree
from soft_vit.dense.segmentation.metric import SegmentationMetric
from soft_vit.dense.segmentation.preprocessor import SegmentationPreprocessor
from soft_vit.dense.segmentation.segmentor import TimmSegmentor

__all__ = ["ClassNamesHook", "LabelMapTree", "SegmentationMetric", "SegmentationPreprocessor", "TimmSegmentor"]
