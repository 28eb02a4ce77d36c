"""Detection and segmentation on timm backbones.

`features` makes maps from any timm model. `detection` and `segmentation` hold models, data sets and metrics, which
importing either registers. Importing this package registers `backbone` alone, for mmdet and mmseg.
"""

from soft_vit.dense.backbone import SOFT

__all__ = ["SOFT"]
