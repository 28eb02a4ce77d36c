"""Maps of a timm model made into a feature pyramid (Lin et al., arXiv 1612.03144) by torchvision."""

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
    """A backbone and the pyramid on it, as torchvision's detectors expect one.

    backbone: arguments of `TimmFeatures`; out_indices is by default all maps of `stride` and more. channels: of every
    map of the pyramid. extra: what follows the last map, "pool" for every second pixel of it (Faster R-CNN) or "conv"
    for two convolutions of stride 2 on the backbone's last map (RetinaNet's P6 and P7).

    out_channels: of every map. names: of the levels that come from one of the backbone's maps. num_levels: of all.
    Raises UserError (a ValueError) for a backbone without such maps.
    """

    def __init__(self, backbone: dict[str, Any], *, channels: int, stride: int, extra: str) -> None:
        super().__init__()
        if backbone.get("out_indices") is None:
            backbone = {**backbone, "out_indices": _indices_from(stride, backbone)}
        self.body = TimmFeatures(**backbone)
        widths = self.body.channels
        if extra == "conv" and widths[-1] == channels:
            raise UserError(
                f"The pyramid has as many channels ({channels}) as the last map of {self.body.model_name}, and "
                "torchvision would put P6 on P5 instead of on that map; choose other pyramid channels."
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
    """What timm calls the maps of a stride and more."""
    with torch.device("meta"):
        features = TimmFeatures(**backbone)
    indices = features.body.feature_info.out_indices
    found = [index for index, reduction in zip(indices, features.reductions, strict=True) if reduction >= stride]
    if not found:
        raise UserError(
            f"{features.model_name} has maps of stride {', '.join(map(str, features.reductions))}, and this detector "
            f"begins at {stride}; choose another model."
        )
    return found
