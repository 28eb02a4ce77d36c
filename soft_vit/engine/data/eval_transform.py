"""Resizing and cropping as the models of timm are evaluated."""

from typing import Any

import numpy as np
from mmcv.transforms import BaseTransform
from PIL import Image
from timm.data.transforms_factory import transforms_imagenet_eval

from soft_vit.registry import TRANSFORMS, register

__all__ = ["LoadedImage", "TimmEvalCrop"]


@register(TRANSFORMS)
class LoadedImage(BaseTransform):
    """Begins a test pipeline: `img` becomes RGB where it comes from an inferencer of mmpretrain.

    These hand over uint8 [H, W, 3] in mmcv's order, BGR. The data sets here hand over RGB, and a `sample_idx`.
    """

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        if "sample_idx" in results:
            return results
        return {**results, "img": np.ascontiguousarray(results["img"][..., ::-1])}


@register(TRANSFORMS)
class TimmEvalCrop(BaseTransform):
    """timm's evaluation transform: resize to `img_size / crop_pct`, then the centre of img_size.

    img_size: pixels a side. crop_pct: above 0; 1 crops nothing off the shorter side. interpolation: `bicubic`,
    `bilinear`, `lanczos` and so on. crop_mode: `center` keeps the aspect ratio, `squash` does not, `border` pads.
    `img` (uint8 [H, W, 3] or a PIL image) becomes uint8 [img_size, img_size, 3]; normalising is left to the model.
    """

    def __init__(
        self, img_size: int, crop_pct: float = 0.875, interpolation: str = "bicubic", crop_mode: str = "center"
    ) -> None:
        self.transform_image = transforms_imagenet_eval(
            img_size, crop_pct=crop_pct, crop_mode=crop_mode, interpolation=interpolation, normalize=False
        )

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        image = results["img"]
        image = image if isinstance(image, Image.Image) else Image.fromarray(image)
        # A tensor or an array, depending on timm's version.
        array = np.asarray(self.transform_image(image)).transpose(1, 2, 0)
        return {**results, "img": np.ascontiguousarray(array), "img_shape": array.shape[:2]}
