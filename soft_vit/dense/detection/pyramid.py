"""torchvision's feature pyramid (Lin et al., arXiv 1612.03144) on the maps of a timm model."""

from collections import OrderedDict
from typing import Any

from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7

from soft_vit.dense.features import TimmFeatures
from soft_vit.engine.errors import UserError

__all__ = ["FeaturePyramid"]


class FeaturePyramid(nn.Module):
    """A backbone and its pyramid, in the form that torchvision's detectors expect.

    backbone: arguments of `TimmFeatures`; out_indices defaults to all maps of `stride` and more. channels: of every map
    of the pyramid. extra: what follows the last map, "pool" for its subsampling by 2 (Faster R-CNN) or "conv" for two
    convolutions of stride 2 on the backbone's last map (P6 and P7 of RetinaNet).

    out_channels: of every map. names: of the levels made from the backbone's maps. num_levels: of all.
    """

    def __init__(self, backbone: dict[str, Any], *, channels: int, stride: int, extra: str) -> None:
        super().__init__()
        self.body = TimmFeatures(**backbone, least_stride=stride)
        widths = self.body.channels
        if extra == "conv" and widths[-1] == channels:
            raise UserError(
                f"pyramid_channels is {channels}, as many as the last map of {self.body.model_name} has, which makes "
                "torchvision put P6 on P5 instead of that map; choose another number."
            )
        blocks = LastLevelP6P7(widths[-1], channels) if extra == "conv" else LastLevelMaxPool()
        self.fpn = FeaturePyramidNetwork(widths, channels, extra_blocks=blocks)
        self.out_channels = channels
        self.names = [str(index) for index in range(len(widths))]
        self.num_levels = len(widths) + (2 if extra == "conv" else 1)

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Normalised images `[B, 3, H, W]` to maps `[B, channels, H_i, W_i]`, the largest first."""
        return self.fpn(OrderedDict(zip(self.names, self.body(images), strict=True)))
