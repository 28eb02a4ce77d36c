"""Detection and segmentation on the pyramids: importing this package registers the backbone alone."""

from soft_vit.dense.backbone import SOFT

__all__ = ["SOFT"]
