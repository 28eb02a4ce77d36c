"""torchvision's feature pyramid (Lin et al., arXiv 1612.03144) on the maps of a timm model."""

from collections import OrderedDict
from typing import Any

import torch
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

    out_channels: of every map. names: of the levels made from the backbone's maps. num_levels: of all. Raises UserError
    for a backbone without such maps.
    """

    def __init__(self, backbone: dict[str, Any], *, channels: int, stride: int, extra: str) -> None:
        super().__init__()
        if backbone.get("out_indices") is None:
            backbone = {**backbone, "out_indices": _indices_from(stride, backbone)}
        self.body = TimmFeatures(**backbone)
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


def _indices_from(stride: int, backbone: dict[str, Any]) -> list[int]:
    """Indices in timm of the maps of a stride and more."""
    with torch.device("meta"):
        features = TimmFeatures(**backbone)
    indices = features.body.feature_info.out_indices
    found = [index for index, reduction in zip(indices, features.reductions, strict=True) if reduction >= stride]
    if not found:
        raise UserError(
            f"{features.model_name} has maps of stride {', '.join(map(str, features.reductions))}, but this detector "
            f"needs {stride} or more; choose another model."
        )
    return found
