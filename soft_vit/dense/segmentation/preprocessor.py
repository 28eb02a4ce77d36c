"""Normalise batches of images with label maps, pad them to one size, or cut random windows.

Letters: B images, K windows of each image, H and W height and width of an image, S side of a window.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.model import ImgDataPreprocessor
from mmengine.structures import BaseDataElement, PixelData
from timm.layers import to_2tuple
from torch import Tensor
from torch.nn import functional as F

from soft_vit.data.label_maps import IGNORED
from soft_vit.engine.data.preprocessor import in_bytes
from soft_vit.registry import MODELS, register

# Maximum distance of the centre of a window from its pixel, in window sides.
SPREAD = 0.35


@register(MODELS)
class SegmentationPreprocessor(ImgDataPreprocessor):
    """Normalises images `[3, H, W]`; in training, pads images and labels at the bottom and on the right.

    Images are uint8 or of another type that `in_bytes` takes.

    mean, std: of RGB values in [0, 255]. size: minimum (H, W) of a padded batch; None pads to the largest image. The
    padding has the colour `mean` and the label 255. windows: options of `RandomWindows`, whose windows replace whole
    images in training. Test images remain a list, each in its own size.
    """

    def __init__(
        self,
        mean: list[float],
        std: list[float],
        size: int | tuple[int, int] | None = None,
        windows: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(mean, std, non_blocking=True)
        self.size = None if size is None else to_2tuple(size)
        self.windows = None if windows is None else RandomWindows(**windows)

    def forward(self, data: dict, training: bool = False) -> dict[str, Any]:
        data = self.cast_data(data)
        images = [self.normalise(image) for image in data["inputs"]]
        samples = data.get("data_samples")
        if not training:
            return {"inputs": images, "data_samples": samples}
        sizes = [image.shape[-2:] for image in images] + ([] if self.size is None else [self.size])
        size = tuple(max(sides) for sides in zip(*sizes, strict=True))
        for sample in samples:
            sample.gt_sem_seg = PixelData(data=_pad(sample.gt_sem_seg.data, size, IGNORED))
        inputs = torch.stack([_pad(image, size, 0) for image in images])
        if self.windows is not None:
            inputs, samples = self._cut(inputs, samples)
        return {"inputs": inputs, "data_samples": samples}

    def normalise(self, image: Tensor) -> Tensor:
        """Return the image `[3, H, W]` as the network sees it."""
        return (in_bytes(image) - self.mean).div_(self.std)

    def _cut(self, inputs: Tensor, samples: list[BaseDataElement]) -> tuple[Tensor, list[BaseDataElement]]:
        """Return windows of images `[B, 3, H, W]`, each with a sample of its labels."""
        inputs, labels = self.windows(inputs, torch.cat([sample.gt_sem_seg.data for sample in samples]))
        cut = []
        for index, classes in enumerate(labels):
            sample = samples[index // self.windows.per_image].new()
            sample.gt_sem_seg = PixelData(data=classes[None])
            cut.append(sample)
        return inputs, cut


def _pad(image: Tensor, size: tuple[int, int], value: int) -> Tensor:
    height, width = image.shape[-2:]
    return F.pad(image, (0, size[1] - width, 0, size[0] - height), value=value)


@dataclass(frozen=True)
class RandomWindows:
    """Windows around labelled pixels, randomly turned, scaled, stretched and mirrored.

    size: S, in pixels. per_image: K. scales: range of the factor from an image's pixels to a window's, drawn from a
    log-uniform distribution. angle: maximum rotation in either direction, in degrees. stretch: maximum ratio of the
    scales of the two axes. Half of the windows are mirrored. Each window is placed near a random pixel of a random
    class of the image.
    """

    size: int
    per_image: int = 1
    scales: tuple[float, float] = (1.0, 1.0)
    angle: float = 0.0
    stretch: float = 1.0

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Turn images `[B, 3, H, W]` and labels uint8 `[B, H, W]` into `[B K, 3, S, S]` and `[B K, S, S]`.

        Beyond its border, an image is continued by reflection.
        """
        images = images.repeat_interleave(self.per_image, 0)
        labels = labels.repeat_interleave(self.per_image, 0)
        grid = F.affine_grid(self._maps(labels), [len(images), 1, self.size, self.size], align_corners=False)
        options = {"padding_mode": "reflection", "align_corners": False}
        windows = F.grid_sample(images, grid.to(images.dtype), mode="bilinear", **options)
        classes = F.grid_sample(labels[:, None].float(), grid, mode="nearest", **options)
        return windows, classes[:, 0].to(labels.dtype)

    def _maps(self, labels: Tensor) -> Tensor:
        """Return affine maps `[B K, 2, 3]` from window to image coordinates, both from -1 to 1."""
        count, device = len(labels), labels.device
        side = torch.tensor(labels.shape[-2:], device=device).flip(0)
        draw = torch.rand(count, 4, device=device)
        low, high = (math.log(scale) for scale in self.scales)
        half = self.size / 2 / torch.exp(low + (high - low) * draw[:, 0])
        middle = torch.stack([self._middle(one, 2 * float(reach)) for one, reach in zip(labels, half, strict=True)])
        # Keep a window inside the image if it fits, except for rotated corners.
        reach = torch.minimum(half[:, None], side / 2)
        middle = torch.maximum(torch.minimum(middle, side - reach), reach)
        angle = (2 * draw[:, 1] - 1) * math.radians(self.angle)
        stretch = torch.exp((draw[:, 2] - 0.5) * math.log(self.stretch))
        mirrored = torch.where(draw[:, 3] < 0.5, -1.0, 1.0)
        x_axis = torch.stack([angle.cos(), angle.sin()], 1) * (half * stretch * mirrored)[:, None]
        y_axis = torch.stack([-angle.sin(), angle.cos()], 1) * (half / stretch)[:, None]
        return torch.stack([x_axis, y_axis, middle - side / 2], 2) / (side / 2)[None, :, None]

    def _middle(self, labels: Tensor, extent: float) -> Tensor:
        """Return (x, y) of the centre of a window that covers `extent` pixels of an image with labels `[H, W]`."""
        classes = labels.unique()
        classes = classes[classes != IGNORED]
        if len(classes) == 0:
            return torch.rand(2, device=labels.device) * torch.tensor(labels.shape, device=labels.device).flip(0)
        places = (labels == classes[torch.randint(len(classes), (), device=labels.device)]).nonzero()
        place = places[torch.randint(len(places), (), device=labels.device)].flip(0)
        return place + 0.5 + (2 * torch.rand(2, device=labels.device) - 1) * SPREAD * extent
