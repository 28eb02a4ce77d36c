"""Transforms of an image together with its label map.

`img` is a uint8 tensor `[3, H, W]`, `gt_seg_map` a uint8 tensor `[H, W]`. Random numbers come from torch's global
generator, which a run seeds for each sample (`soft_vit.resume.position`). The recipe and its values are those of
mmseg's ADE20K configs.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from mmcv.transforms import BaseTransform
from mmengine.structures import BaseDataElement, PixelData
from timm.layers import to_2tuple
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from soft_vit.data.label_maps import IGNORED
from soft_vit.engine.data.transforms import build_transform
from soft_vit.ops.numerics import check_choice
from soft_vit.registry import TRANSFORMS, register


def resize_within(size: tuple[int, int], scale: Sequence[float], divisor: int = 1) -> tuple[int, int]:
    """Return the largest size of the same aspect ratio with sides of at most max(scale) and min(scale).

    divisor: sides are rounded up to multiples of it.
    """
    height, width = size
    factor = min(max(scale) / max(height, width), min(scale) / min(height, width))
    if divisor == 1:
        return max(round(height * factor), 1), max(round(width * factor), 1)
    # A side that is a multiple up to rounding stays one.
    return tuple(math.ceil(round(side * factor / divisor, 6)) * divisor for side in size)


def _longer_first(scale: int | Sequence[int], max_ratio: float) -> tuple[float, int]:
    return max(to_2tuple(scale)) * max_ratio, min(to_2tuple(scale))


def _resized(image: Tensor, size: tuple[int, int], interpolation: str = "bilinear") -> Tensor:
    # OpenCV's bicubic interpolation does not smooth.
    return F.resize_image(image, list(size), InterpolationMode(interpolation), antialias=interpolation == "bilinear")


@register(TRANSFORMS)
class SegResize(BaseTransform):
    """Resizes the image to fit into scale (longer side, shorter side), keeping its aspect ratio.

    max_ratio: multiplies the longer side of scale. divisor: sides are rounded up to multiples of it. interpolation:
    "bilinear", with antialiasing, or "bicubic" as by OpenCV, without. For tests: labels keep the original size, in
    which metrics are computed.
    """

    def __init__(
        self, scale: int | tuple[int, int], max_ratio: float = 1.0, divisor: int = 1, interpolation: str = "bilinear"
    ) -> None:
        self.scale = _longer_first(scale, max_ratio)
        self.divisor = divisor
        self.interpolation = check_choice("interpolation", interpolation, ("bilinear", "bicubic"))

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        size = resize_within(results["img"].shape[-2:], self.scale, self.divisor)
        return {**results, "img": _resized(results["img"], size, self.interpolation)}


@register(TRANSFORMS)
class SegRandomResize(BaseTransform):
    """Resizes image and labels to fit into scale (longer side, shorter side) times a factor, keeping the aspect ratio.

    max_ratio: multiplies the longer side of scale. ratio_range: range of the factor, which is drawn uniformly.
    """

    def __init__(
        self, scale: int | tuple[int, int], ratio_range: tuple[float, float] = (0.5, 2.0), max_ratio: float = 1.0
    ) -> None:
        self.scale = _longer_first(scale, max_ratio)
        self.ratio_range = ratio_range

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        factor = torch.empty(()).uniform_(*self.ratio_range).item()
        size = resize_within(results["img"].shape[-2:], [side * factor for side in self.scale])
        # Plain "nearest" would shift labels against the image by half a pixel.
        labels = F.resize_image(results["gt_seg_map"][None], list(size), InterpolationMode.NEAREST_EXACT)[0]
        return {**results, "img": _resized(results["img"], size), "gt_seg_map": labels}


@register(TRANSFORMS)
class SegRandomCrop(BaseTransform):
    """Crops a random window from image and labels; a side shorter than the crop keeps its length.

    crop_size: (H, W). cat_max_ratio: up to ten windows are drawn until each class covers less than this share of the
    labelled pixels; 1 takes the first window.
    """

    TRIES = 10

    def __init__(self, crop_size: int | tuple[int, int], cat_max_ratio: float = 1.0) -> None:
        self.crop_size = to_2tuple(crop_size)
        self.cat_max_ratio = cat_max_ratio

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        labels = results["gt_seg_map"]
        for _ in range(self.TRIES):
            window = self._draw(labels)
            if self.cat_max_ratio == 1 or self._is_mixed(labels[window]):
                break
        return {**results, "img": results["img"][(..., *window)], "gt_seg_map": labels[window]}

    def _draw(self, labels: Tensor) -> tuple[slice, slice]:
        pairs = zip(labels.shape, self.crop_size, strict=True)
        starts = [int(torch.randint(max(side - crop, 0) + 1, ())) for side, crop in pairs]
        return tuple(slice(start, start + crop) for start, crop in zip(starts, self.crop_size, strict=True))

    def _is_mixed(self, labels: Tensor) -> bool:
        counts = torch.bincount(labels.flatten(), minlength=IGNORED + 1)[:IGNORED]
        return bool((counts > 0).sum() > 1 and counts.max() < self.cat_max_ratio * counts.sum())


@register(TRANSFORMS)
class SegRandomFlip(BaseTransform):
    """Mirrors image and labels left to right with a probability."""

    def __init__(self, prob: float = 0.5) -> None:
        self.prob = prob

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        if torch.rand(()) >= self.prob:
            return results
        return {**results, "img": results["img"].flip(-1), "gt_seg_map": results["gt_seg_map"].flip(-1)}


@register(TRANSFORMS)
class SegPhotometricDistortion(BaseTransform):
    """Changes brightness, contrast, saturation and hue, each with probability 1/2 (SSD, arXiv 1512.02325).

    Contrast comes before or after saturation and hue.
    """

    def __init__(self) -> None:
        contrast = v2.ColorJitter(contrast=(0.5, 1.5))
        colors = [v2.ColorJitter(saturation=(0.5, 1.5)), v2.ColorJitter(hue=0.1)]
        orders = [[contrast, *colors], [*colors, contrast]]
        colors_and_contrast = v2.RandomChoice([v2.Compose([_half(step) for step in order]) for order in orders])
        self.distort = v2.Compose([_half(v2.ColorJitter(brightness=0.125)), colors_and_contrast])

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        return {**results, "img": self.distort(results["img"])}


def _half(step: v2.Transform) -> v2.RandomApply:
    return v2.RandomApply([step], p=0.5)


@register(TRANSFORMS)
class SegImageTransforms(BaseTransform):
    """Applies torchvision.transforms.v2, each as `dict(type=NAME, ...)`, to the image but not to its labels."""

    def __init__(self, transforms: Sequence[dict[str, Any]]) -> None:
        self.transforms = v2.Compose([build_transform(config, v2) for config in transforms])

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        return {**results, "img": self.transforms(results["img"])}


@register(TRANSFORMS)
class PackSegmentation(BaseTransform):
    """Packs the image as `inputs`, and its labels (`gt_sem_seg`) and path as `data_samples`; the end of a pipeline."""

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        known = {name: results[name] for name in ("img_path", "ori_shape", "sample_idx") if name in results}
        sample = BaseDataElement(metainfo=known)
        # A crop is a view that would keep the whole image in memory.
        sample.gt_sem_seg = PixelData(data=results["gt_seg_map"][None].contiguous())
        return {"inputs": results["img"].contiguous(), "data_samples": sample}
