"""Decoders on the maps of a backbone, and heads.

Letters: B images, C_i channels of map i, H_i and W_i its height and width.
"""

import itertools
from collections.abc import Sequence
from functools import partial

from segmentation_models_pytorch.base.initialization import initialize_decoder
from segmentation_models_pytorch.base.modules import Conv2dReLU
from segmentation_models_pytorch.decoders.fpn.decoder import FPNDecoder
from segmentation_models_pytorch.decoders.upernet.decoder import UPerNetDecoder
from timm.layers import to_2tuple
from torch import Tensor, nn

from soft_vit.models.efficientvit import Conv, MapFusion
from soft_vit.ops.landmarks import window_averages


class Decoder(nn.Module):
    """What a segmentor asks of a decoder.

    normalises: whether it normalises the maps itself. strides: of the maps that it takes, None for any. resize_mode: of
    its scores. out_channels: of its map.
    """

    normalises = True
    strides: tuple[int, ...] | None = None
    resize_mode = "bilinear"
    out_channels: int


class GridAverages(nn.AdaptiveAvgPool2d):
    """Averages over a grid of windows, which exported graphs compute for maps of any size."""

    def forward(self, x: Tensor) -> Tensor:
        return window_averages(x, to_2tuple(self.output_size))


class UPerNet(Decoder):
    """UPerNet (Xiao et al., arXiv 1807.10221): pyramid pooling on the last map, top-down path, fusion.

    in_channels: of the backbone's maps, two or more. channels: of every map inside and of the result.

    Layers and pooling (1, 2, 3, 6) are mmseg's. With equal channels, so is the number of parameters, if the norms of
    the maps are included, which belong to the backbone there.
    """

    def __init__(self, in_channels: Sequence[int], channels: int = 512) -> None:
        super().__init__()
        # The library expects the image and a map of stride 2 first, but ignores both.
        self.decoder = UPerNetDecoder((0, 0, *in_channels), len(in_channels) + 1, channels)
        for block in self.decoder.psp.blocks:
            block[0] = GridAverages(block[0].output_size)
        initialize_decoder(self.decoder)
        self.out_channels = channels

    def forward(self, maps: list[Tensor]) -> Tensor:
        """Turn maps `[B, C_i, H_i, W_i]`, the largest first, into one `[B, channels, H_1, W_1]`."""
        return self.decoder([None, None, *maps])


class SemanticFPN(Decoder):
    """Semantic FPN (Kirillov et al., arXiv 1901.02446): a feature pyramid whose maps are enlarged and added.

    in_channels: of four maps of strides 4, 8, 16, 32. pyramid_channels: of the pyramid's maps. channels: of the result,
    a multiple of 32, the number of groups of its GroupNorm. Unlike mmseg's, the pyramid is without 3 x 3 convolutions
    after its sums: 2.36 M parameters fewer at 256 channels.
    """

    normalises = False
    strides = (4, 8, 16, 32)

    def __init__(self, in_channels: Sequence[int], channels: int = 128, pyramid_channels: int = 256) -> None:
        super().__init__()
        widths = dict(pyramid_channels=pyramid_channels, segmentation_channels=channels)
        # PixelClassifier applies dropout.
        self.decoder = FPNDecoder(list(in_channels), **widths, dropout=0.0)
        initialize_decoder(self.decoder)
        self.out_channels = channels

    def forward(self, maps: list[Tensor]) -> Tensor:
        """Turn maps `[B, C_i, H_i, W_i]`, the largest first, into one `[B, channels, H_1, W_1]`."""
        return self.decoder(maps)


class EfficientViTDecoder(MapFusion, Decoder):
    """The head of EfficientViT (Cai et al., arXiv 2205.14756), on the last three maps of any backbone.

    in_channels: of the backbone's maps; at most the last three count. channels, depth, block, expand, out_expand: see
    `MapFusion`. gelu, eps: see `Conv`. Scores are resized bicubically, as released.
    """

    resize_mode = "bicubic"

    def __init__(self, in_channels: Sequence[int], *, gelu: bool = False, eps: float = 1e-5, **options) -> None:
        super().__init__(in_channels, conv=partial(Conv, gelu=gelu, eps=eps), **options)


DECODERS: dict[str, type[Decoder]] = {"upernet": UPerNet, "fpn": SemanticFPN, "efficientvit": EfficientViTDecoder}
"""Decoders by name."""


class PixelClassifier(nn.Module):
    """Dropout of whole channels, then class scores for every pixel of a map."""

    def __init__(self, channels: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.dropout = nn.Dropout2d(dropout)
        self.conv = nn.Conv2d(channels, num_classes, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        """Turn `[B, channels, H, W]` into `[B, num_classes, H, W]`."""
        return self.conv(self.dropout(x))


class FCNHead(nn.Module):
    """3 x 3 convolutions and a classifier on one map, for an auxiliary loss (PSPNet, arXiv 1612.01105, Sec. 3.3)."""

    def __init__(
        self, in_channels: int, num_classes: int, channels: int = 256, num_convs: int = 1, dropout: float = 0.1
    ) -> None:
        super().__init__()
        widths = [in_channels] + [channels] * num_convs
        self.convs = nn.Sequential(*(Conv2dReLU(a, b, kernel_size=3, padding=1) for a, b in itertools.pairwise(widths)))
        initialize_decoder(self.convs)
        self.classifier = PixelClassifier(widths[-1], num_classes, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Turn `[B, in_channels, H, W]` into `[B, num_classes, H, W]`."""
        return self.classifier(self.convs(x))
