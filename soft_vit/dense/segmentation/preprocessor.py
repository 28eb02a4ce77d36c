"""What is done to a batch of images and label maps on its device: normalising, and padding to one size."""

from typing import Any

import torch
from mmengine.model import BaseDataPreprocessor
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor
from torch.nn import functional as F

from soft_vit.data.label_maps import IGNORED
from soft_vit.dense.segmentation.windows import RandomWindows
from soft_vit.engine.errors import UserError, one_line
from soft_vit.registry import MODELS, register

__all__ = ["SegmentationPreprocessor"]


@register(MODELS)
class SegmentationPreprocessor(BaseDataPreprocessor):
    """Normalises uint8 images [3, H, W]; for training, pads them and their labels below and to the right.

    mean, std: of RGB values in [0, 255]. size: (H, W) that training images are padded to, at least the largest of the
    batch; None for that. Padding has the colour `mean` and the label 255. windows: options of `RandomWindows`, which
    training sees in the place of whole images. Images of a test stay a list, each in its size.
    """

    def __init__(
        self,
        mean: list[float],
        std: list[float],
        size: tuple[int, int] | None = None,
        windows: dict[str, Any] | None = None,
        non_blocking: bool = True,
    ) -> None:
        super().__init__(non_blocking=non_blocking)
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)
        self.size = None if size is None else tuple(size)
        try:
            self.windows = None if windows is None else RandomWindows(**windows)
        except TypeError as error:
            raise UserError(f"windows is {windows} ({one_line(error)}); see RandomWindows for its options.") from error

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
        if self.windows is not None:
            inputs, samples = self._cut(inputs, samples)
        return {"inputs": inputs, "data_samples": samples}

    def _cut(self, inputs: Tensor, samples: list[BaseDataElement]) -> tuple[Tensor, list[BaseDataElement]]:
        """Windows of images `[B, 3, H, W]`, and a sample with the labels of each."""
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
