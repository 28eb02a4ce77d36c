"""Detection and segmentation on timm backbones. Importing it registers the backbone for mmdet and mmseg only."""

from soft_vit.dense.backbone import SOFT

__all__ = ["SOFT"]
