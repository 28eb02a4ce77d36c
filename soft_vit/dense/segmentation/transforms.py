"""Augmentation of an image together with its label map.

`img` is a uint8 tensor `[3, H, W]` and `gt_seg_map` one `[H, W]`. All draw from torch's global generator, which a run
seeds for each sample (`soft_vit.engine.resume.position`). The recipe, its names and values are those of mmseg's
ADE20K configs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from mmcv.transforms import BaseTransform
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from soft_vit.data.label_maps import IGNORED
from soft_vit.dense.vision_transforms import build_transform
from soft_vit.engine.errors import UserError
from soft_vit.registry import TRANSFORMS, register

__all__ = [
    "PackSegmentation",
    "SegImageTransforms",
    "SegPhotometricDistortion",
    "SegRandomCrop",
    "SegRandomFlip",
    "SegRandomResize",
    "SegResize",
]


# The axis of each direction of a flip.
AXES = {"horizontal": -1, "vertical": -2}


def resize_within(size: tuple[int, int], scale: Sequence[float]) -> tuple[int, int]:
    """The largest size of the same aspect ratio with sides of at most max(scale) and min(scale)."""
    height, width = size
    factor = min(max(scale) / max(height, width), min(scale) / min(height, width))
    return max(round(height * factor), 1), max(round(width * factor), 1)


def _resize(results: dict[str, Any], size: tuple[int, int], labels: bool) -> dict[str, Any]:
    image = F.resize_image(results["img"], list(size), InterpolationMode.BILINEAR, antialias=True)
    results = {**results, "img": image}
    if labels:
        # Plain "nearest" would shift labels against the image by half a pixel.
        results["gt_seg_map"] = F.resize_image(
            results["gt_seg_map"][None], list(size), InterpolationMode.NEAREST_EXACT
        )[0]
    return results


def _checked_pair(name: str, value: Sequence[int] | int) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or min(pair) < 1:
        raise UserError(f"{name} is {value}; give two numbers of pixels, each at least 1.")
    return pair


@register(TRANSFORMS)
class SegResize(BaseTransform):
    """Resizes the image to fit into scale (longer side, shorter side), keeping its aspect ratio.

    For testing: labels keep the original size, at which figures are taken.
    """

    def __init__(self, scale: tuple[int, int]) -> None:
        self.scale = _checked_pair("scale", scale)

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        return _resize(results, resize_within(results["img"].shape[-2:], self.scale), labels=False)


@register(TRANSFORMS)
class SegRandomResize(BaseTransform):
    """Resizes image and labels to fit into scale (longer side, shorter side) times a factor, keeping the aspect ratio.

    ratio_range: of the factor, which is uniform.
    """

    def __init__(self, scale: tuple[int, int], ratio_range: tuple[float, float] = (0.5, 2.0)) -> None:
        self.scale = _checked_pair("scale", scale)
        self.ratio_range = tuple(ratio_range)
        if len(self.ratio_range) != 2 or not 0 < self.ratio_range[0] <= self.ratio_range[1]:
            raise UserError(f"ratio_range is {ratio_range}; give the least and the largest factor, above 0.")

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        factor = torch.empty(()).uniform_(*self.ratio_range).item()
        scale = [side * factor for side in self.scale]
        return _resize(results, resize_within(results["img"].shape[-2:], scale), labels=True)


@register(TRANSFORMS)
class SegRandomCrop(BaseTransform):
    """Crops a random window from image and labels; a side shorter than the crop keeps its length.

    crop_size: (H, W). cat_max_ratio: draw up to ten windows until no class fills more than this share of the labelled
    pixels; 1 takes the first window.
    """

    TRIES = 10

    def __init__(self, crop_size: int | tuple[int, int], cat_max_ratio: float = 1.0) -> None:
        self.crop_size = _checked_pair("crop_size", crop_size)
        if not 0 < cat_max_ratio <= 1:
            raise UserError(f"cat_max_ratio is {cat_max_ratio}; choose a share above 0 and at most 1.")
        self.cat_max_ratio = cat_max_ratio

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        labels = results["gt_seg_map"]
        window = self._draw(labels)
        for _ in range(self.TRIES - 1):
            if self.cat_max_ratio == 1 or self._is_mixed(labels[window]):
                break
            window = self._draw(labels)
        return {**results, "img": results["img"][(..., *window)], "gt_seg_map": labels[window]}

    def _draw(self, labels: Tensor) -> tuple[slice, slice]:
        starts = [_below(max(side - crop, 0) + 1) for side, crop in zip(labels.shape, self.crop_size, strict=True)]
        return tuple(slice(start, start + crop) for start, crop in zip(starts, self.crop_size, strict=True))

    def _is_mixed(self, labels: Tensor) -> bool:
        counts = torch.bincount(labels.flatten(), minlength=IGNORED + 1)[:IGNORED]
        return bool((counts > 0).sum() > 1 and counts.max() < self.cat_max_ratio * counts.sum())


def _below(count: int) -> int:
    return int(torch.randint(count, ()))


@register(TRANSFORMS)
class SegRandomFlip(BaseTransform):
    """Mirrors image and labels with a probability, left to right ("horizontal") or top to bottom ("vertical")."""

    def __init__(self, prob: float = 0.5, direction: str = "horizontal") -> None:
        if not 0 <= prob <= 1:
            raise UserError(f"prob is {prob}; choose a probability from 0 to 1.")
        if direction not in AXES:
            raise UserError(f"direction is {direction!r}; choose one of {', '.join(AXES)}.")
        self.prob = prob
        self.axis = AXES[direction]

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        if torch.rand(()) >= self.prob:
            return results
        return {**results, "img": results["img"].flip(self.axis), "gt_seg_map": results["gt_seg_map"].flip(self.axis)}


@register(TRANSFORMS)
class SegPhotometricDistortion(BaseTransform):
    """Changes brightness, contrast, saturation and hue, each with probability 1/2 (SSD, arXiv 1512.02325).

    Contrast comes before or after saturation and hue. brightness: largest relative change. contrast, saturation: ranges
    of the factor. hue: largest turn, as a share of the full circle.
    """

    def __init__(
        self,
        brightness: float = 0.125,
        contrast: tuple[float, float] = (0.5, 1.5),
        saturation: tuple[float, float] = (0.5, 1.5),
        hue: float = 0.1,
    ) -> None:
        try:
            first = v2.ColorJitter(brightness=brightness)
            middle = v2.ColorJitter(contrast=tuple(contrast))
            colors = [v2.ColorJitter(saturation=tuple(saturation)), v2.ColorJitter(hue=hue)]
        except (TypeError, ValueError) as error:
            raise UserError(f"SegPhotometricDistortion cannot be built ({error}); see its documentation.") from error
        orders = [[middle, *colors], [*colors, middle]]
        self.distort = v2.Compose(
            [_half(first), v2.RandomChoice([v2.Compose([_half(step) for step in order]) for order in orders])]
        )

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        return {**results, "img": self.distort(results["img"])}


def _half(step: v2.Transform) -> v2.RandomApply:
    return v2.RandomApply([step], p=0.5)


@register(TRANSFORMS)
class SegImageTransforms(BaseTransform):
    """Applies torchvision.transforms.v2, each as `dict(type=NAME, ...)`, to the image and not to its labels."""

    def __init__(self, transforms: Sequence[dict[str, Any]]) -> None:
        self.transforms = v2.Compose([build_transform(config) for config in transforms])

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        return {**results, "img": self.transforms(results["img"])}


@register(TRANSFORMS)
class PackSegmentation(BaseTransform):
    """Ends a pipeline: `inputs` is the image, `data_samples` has its labels as `gt_sem_seg` and its path."""

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        known = {name: results[name] for name in ("img_path", "ori_shape", "sample_idx") if name in results}
        sample = BaseDataElement(metainfo=known)
        # A crop is a view that would keep its whole image.
        sample.gt_sem_seg = PixelData(data=results["gt_seg_map"][None].contiguous())
        return {"inputs": results["img"].contiguous(), "data_samples": sample}
