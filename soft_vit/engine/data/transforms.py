"""Image transforms: augmentation by timm or Albumentations, and timm's evaluation crop."""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import albumentations
import numpy as np
from mmcv.transforms import BaseTransform
from PIL import Image
from timm.data import create_transform
from timm.data.transforms_factory import transforms_imagenet_eval
from timm.layers import to_2tuple

from soft_vit.registry import TRANSFORMS, register


def allow_zero_bits(augment: Any) -> None:
    """Let Posterize of timm's RandAugment keep 0 bits, a black image, as Pillow did before version 13; in place.

    At the recipe's magnitude about one image in 700 asks for 0 bits; Pillow 13 raises an error, which ends the run.
    """
    for policy in augment.transforms:
        for op in getattr(policy, "ops", ()):
            if op.name.startswith("Posterize"):
                op.aug_fn = partial(_posterize, op.aug_fn)


def _posterize(posterize: Callable, image: Image.Image, bits: int, **kwargs: Any) -> Image.Image:
    return posterize(image, bits, **kwargs) if bits > 0 else Image.new(image.mode, image.size)


@register(TRANSFORMS)
class TimmAugment(BaseTransform):
    """timm's training transform: random crop, flip, RandAugment or colour jitter.

    img_size: pixels, one number or (H, W). auto_augment: in timm's notation, such as "rand-m9-mstd0.5-inc1"; timm then
    ignores color_jitter. Other arguments are those of `timm.data.create_transform`. `img` (an RGB image of Pillow,
    or uint8 [H, W, 3]) becomes a uint8 tensor [3, H, W].
    """

    def __init__(self, img_size: int | tuple[int, int] = 224, **kwargs: Any) -> None:
        self.augment = create_transform(to_2tuple(img_size), is_training=True, normalize=False, **kwargs)
        allow_zero_bits(self.augment)

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        image = results["img"]
        image = image if isinstance(image, Image.Image) else Image.fromarray(image)
        return {**results, "img": self.augment(image), "ori_shape": image.size[::-1]}


@register(TRANSFORMS)
class AlbumentationsTransform(BaseTransform):
    """A pipeline of Albumentations, in place of `TimmAugment`.

    transforms: dicts with the class's name as `type` and its arguments; `OneOf`, `SomeOf` and `Sequential` hold further
    ones. img_size: pixels, one number or (H, W), for a RandomResizedCrop without a `size`. `img` (an RGB image of
    Pillow, or uint8 [H, W, 3]) becomes uint8 [H, W, 3]. Each call draws its seed from NumPy's global generator, because
    Albumentations keeps a generator of its own, which workers would share.
    """

    def __init__(self, transforms: list[dict], img_size: int | tuple[int, int] | None = None) -> None:
        defaults = {} if img_size is None else {"RandomResizedCrop": {"size": to_2tuple(img_size)}}
        with warnings.catch_warnings():
            # Albumentations only warns about unknown arguments, and ignores them.
            warnings.simplefilter("error")
            steps = [build_transform(one, albumentations, defaults) for one in transforms]
            self.augment = albumentations.Compose(steps)

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        image = np.asarray(results["img"])
        self.augment.set_random_seed(int(np.random.randint(2**31)))  # noqa: NPY002  seeded for each sample
        return {**results, "img": self.augment(image=image)["image"], "ori_shape": image.shape[:2]}


def build_transform(config: dict, library: ModuleType, defaults: Mapping[str, dict] | None = None) -> Any:
    """Return the transform of `dict(type=NAME, ...)`, whose option `transforms` may hold further ones.

    library: the module with the classes. defaults: options by the name of a class.
    """
    options = dict(config)
    name = options.pop("type")
    if "transforms" in options:
        options["transforms"] = [build_transform(inner, library, defaults) for inner in options["transforms"]]
    return getattr(library, name)(**{**(defaults or {}).get(name, {}), **options})


@register(TRANSFORMS)
class LoadedImage(BaseTransform):
    """Begins a test pipeline: converts `img` to RGB if it comes from an inferencer of mmpretrain.

    Inferencers pass uint8 [H, W, 3] in mmcv's order, BGR; the data sets here pass RGB and a `sample_idx`.
    """

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        if "sample_idx" in results:
            return results
        return {**results, "img": np.ascontiguousarray(results["img"][..., ::-1])}


@register(TRANSFORMS)
class TimmEvalCrop(BaseTransform):
    """timm's evaluation transform: resize to `img_size / crop_pct`, then the centre of img_size.

    img_size: pixels, one number or (H, W). crop_pct: above 0; 1 keeps the whole shorter side. interpolation: `bicubic`,
    `bilinear`, `lanczos` and so on. crop_mode: `center` keeps the aspect ratio, `squash` does not, `border` pads.
    `img` (uint8 [H, W, 3] or a PIL image) becomes uint8 of that size; normalising is left to the model.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        crop_pct: float = 0.875,
        interpolation: str = "bicubic",
        crop_mode: str = "center",
    ) -> None:
        how = dict(crop_pct=crop_pct, crop_mode=crop_mode, interpolation=interpolation, normalize=False)
        self.transform_image = transforms_imagenet_eval(to_2tuple(img_size), **how)

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        image = results["img"]
        image = image if isinstance(image, Image.Image) else Image.fromarray(image)
        # The result is a tensor or an array, depending on timm's version.
        array = np.asarray(self.transform_image(image)).transpose(1, 2, 0)
        return {**results, "img": np.ascontiguousarray(array), "img_shape": array.shape[:2]}
