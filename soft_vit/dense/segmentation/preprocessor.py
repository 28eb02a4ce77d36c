"""What is done to a batch of images and label maps on its device: normalising, and padding to one size."""

from typing import Any

import torch
from mmengine.model import BaseDataPreprocessor
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor
from torch.nn import functional as F

from soft_vit.datasets.label_maps import IGNORED
from soft_vit.engine.errors import UserError
from soft_vit.registry import MODELS, register

__all__ = ["SegmentationPreprocessor"]


@register(MODELS)
class SegmentationPreprocessor(BaseDataPreprocessor):
    """Normalises uint8 images [3, H, W]; for training, pads them and their labels below and to the right.

    mean, std: of RGB values in [0, 255]. size: (H, W) that training images are padded to, at least the largest of the
    batch; None for that. Padding has the colour `mean` and the label 255. batch_scales: range of a factor that is drawn
    for each training batch and resizes all of it, to multiples of 8 pixels: many scales without padding. Images of a
    test stay a list, each in its size.
    """

    def __init__(
        self,
        mean: list[float],
        std: list[float],
        size: tuple[int, int] | None = None,
        batch_scales: tuple[float, float] | None = None,
        non_blocking: bool = True,
    ) -> None:
        super().__init__(non_blocking=non_blocking)
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)
        self.size = None if size is None else tuple(size)
        self.batch_scales = batch_scales
        if batch_scales is not None and not 0 < batch_scales[0] <= batch_scales[1]:
            raise UserError(f"batch_scales is {batch_scales}; give the least and the largest factor, above 0.")

    def forward(self, data: dict, training: bool = False) -> dict[str, Any]:
        data = self.cast_data(data)
        images = [image.float().sub_(self.mean).div_(self.std) for image in data["inputs"]]
        samples = data.get("data_samples")
        if not training:
            return {"inputs": images, "data_samples": samples}
        sizes = [image.shape[-2:] for image in images] + ([] if self.size is None else [self.size])
        size = tuple(max(sides) for sides in zip(*sizes, strict=True))
        for sample in samples:
            sample.gt_sem_seg = PixelData(data=_pad(sample.gt_sem_seg.data, size, IGNORED))
        inputs = torch.stack([_pad(image, size, 0) for image in images])
        if self.batch_scales is not None:
            inputs = self._resize(inputs, samples)
        return {"inputs": inputs, "data_samples": samples}

    def _resize(self, inputs: Tensor, samples: list[BaseDataElement]) -> Tensor:
        """Images `[B, 3, H, W]` and the labels of their samples, in place, at one scale for all."""
        factor = torch.empty(()).uniform_(*self.batch_scales).item()
        size = [max(int(side * factor) // 8, 1) * 8 for side in inputs.shape[-2:]]
        for sample in samples:
            labels = sample.gt_sem_seg.data[None].float()
            sample.gt_sem_seg = PixelData(data=F.interpolate(labels, size=size, mode="nearest-exact")[0].byte())
        return F.interpolate(inputs, size=size, mode="bilinear", align_corners=False, antialias=True)


def _pad(image: Tensor, size: tuple[int, int], value: int) -> Tensor:
    height, width = image.shape[-2:]
    return F.pad(image, (0, size[1] - width, 0, size[0] - height), value=value)
