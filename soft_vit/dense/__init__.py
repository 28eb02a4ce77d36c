"""Detection and segmentation on timm backbones. Importing this registers the backbone, a subpackage the rest."""

from soft_vit.dense.backbone import SOFT

__all__ = ["SOFT"]
