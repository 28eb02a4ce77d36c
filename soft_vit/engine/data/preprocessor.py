"""Collate batches, then normalise, erase and mix them on their device."""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.model import ImgDataPreprocessor
from mmengine.registry import FUNCTIONS
from mmpretrain.structures import DataSample
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, Mixup
from timm.data.mixup import mixup_target
from timm.data.random_erasing import RandomErasing
from torch import Tensor
from torch.utils.data import default_collate

from soft_vit.registry import MODELS, register


@FUNCTIONS.register_module()
def collate_labels(batch: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Stack packed samples to `inputs` [B, ...] and `labels` [B] or [B, classes], and drop the rest of the samples.

    Workers pass each tensor through a file descriptor, of which DataSamples would need one for each label.
    """
    # PyTorch's collating writes straight into memory shared with the main process.
    inputs = default_collate([sample["inputs"] for sample in batch])
    samples = [sample["data_samples"] for sample in batch]
    if "gt_score" in samples[0]:
        return {"inputs": inputs, "labels": torch.stack([sample.gt_score for sample in samples])}
    return {"inputs": inputs, "labels": torch.cat([sample.gt_label for sample in samples])}


def samples_of_labels(labels: Tensor) -> list[DataSample]:
    """Return a DataSample for each label [B], or for each row of targets [B, classes], on its device."""
    if labels.ndim == 1:
        return [DataSample().set_gt_label(label) for label in labels.split(1)]
    return [DataSample().set_gt_score(target) for target in labels]


def in_bytes(images: Tensor) -> Tensor:
    """Return images with values in [0, 255]: uint8 as they are, other integers scaled by the range of their type.

    Floats must be in [0, 1], which is scaled, or in [0, 255]; their largest value tells. Raises ValueError for floats
    of another range, such as those of normalised images.
    """
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        return images.float() * (255 / torch.iinfo(images.dtype).max)
    low, high = (value.item() for value in images.aminmax())
    # Bicubic resizing overshoots, and normalised values end below 3.
    if low >= -0.5 and high <= 1.5:
        return 255 * images
    if low < -128 or not 4 < high < 384:
        raise ValueError(f"Images of floats must be in [0, 1] or [0, 255], got values from {low:g} to {high:g}.")
    return images


@register(MODELS)
class RecipeDataPreprocessor(ImgDataPreprocessor):
    """Normalises RGB images [B, 3, H, W] and turns labels into targets, by timm's own functions.

    Images are uint8 or of another type that `in_bytes` takes.
    Takes batches of `collate_labels`, or of DataSamples. Images of mmcv's LoadImageFromFile are BGR; use MMPretrain's
    ClsDataPreprocessor with `to_rgb=True` for these.

    mean, std: of RGB values in [0, 255], by default ImageNet's. reprob: probability of random erasing (Zhong et al.,
    arXiv 1708.04896). mixup, cutmix: parameters alpha of mixup (arXiv 1710.09412) and CutMix (arXiv 1905.04899), 0 for
    none; with both, each batch draws one of them. smoothing: of the targets. With any of mixup, cutmix or smoothing,
    `gt_score` of a training sample is its target [classes]. The last image of an odd batch is not mixed.
    """

    def __init__(
        self,
        mean: Sequence[float] = tuple(255 * value for value in IMAGENET_DEFAULT_MEAN),
        std: Sequence[float] = tuple(255 * value for value in IMAGENET_DEFAULT_STD),
        num_classes: int | None = None,
        *,
        reprob: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        smoothing: float = 0.0,
    ) -> None:
        super().__init__(mean, std, non_blocking=True)
        self.reprob = reprob
        self.mixing = None
        if mixup or cutmix or smoothing:
            # timm refuses to draw without an alpha; at probability 0 nothing is drawn.
            draws = dict(mixup_alpha=mixup, cutmix_alpha=cutmix) if mixup or cutmix else dict(mixup_alpha=1.0, prob=0.0)
            self.mixing = Mixup(**draws, label_smoothing=smoothing, num_classes=num_classes)

    def _end_mixing(self, value: None) -> None:
        if value is not None:
            raise ValueError(f"batch_augments must be None, which ends mixup and cutmix, got {value}.")
        if self.mixing is not None:
            self.mixing.mixup_enabled = False

    # MMPretrain's SwitchRecipeHook sets it.
    batch_augments = property(None, _end_mixing)

    def forward(self, data: dict, training: bool = False) -> dict[str, Any]:
        data = self.cast_data(data)
        images = data["inputs"]
        samples = samples_of_labels(data["labels"]) if "labels" in data else data.get("data_samples")
        images = images if isinstance(images, Tensor) else torch.stack(images)
        # The caller's batch stays as it is.
        images = (in_bytes(images) - self.mean).div_(self.std)
        if training and self.reprob:
            images = RandomErasing(self.reprob, mode="pixel", device=images.device)(images)
        if training and self.mixing is not None:
            labels = torch.cat([sample.gt_label for sample in samples])
            even = len(images) // 2 * 2
            # In place in `images`.
            parts = [self.mixing(images[:even], labels[:even])[1]] if even else []
            parts.append(mixup_target(labels[even:], self.mixing.num_classes, smoothing=self.mixing.label_smoothing))
            for sample, target in zip(samples, torch.cat(parts), strict=True):
                sample.set_gt_score(target)
        return {"inputs": images, "data_samples": samples}
