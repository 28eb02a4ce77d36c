"""Detection and segmentation on timm backbones. Importing it registers the backbone; its subpackages register the rest."""

from soft_vit.dense.backbone import SOFT

__all__ = ["SOFT"]
