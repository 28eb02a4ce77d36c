"""Transforms against timm and Albumentations."""

import numpy as np
import pytest
import torch
from mmengine.registry import TRANSFORMS
from mmengine.runner import set_random_seed
from PIL import Image
from timm.data import create_transform

import soft_vit.engine  # noqa: F401  registers the transforms
from soft_vit.engine import TimmAugment, TimmEvalCrop

IMAGE = np.random.default_rng(0).integers(0, 256, (45, 67, 3), dtype=np.uint8)
RECIPE = {"auto_augment": "rand-m9-mstd0.5-inc1", "color_jitter": 0.4, "interpolation": "bicubic"}


@pytest.mark.parametrize("size", [33, (31, 40)])
def test_timms_augmentation_as_it_is(size):
    ours = TRANSFORMS.build({"type": "TimmAugment", "img_size": size, **RECIPE})
    timms = create_transform(size, is_training=True, use_prefetcher=True, **RECIPE)
    for value in range(5):
        set_random_seed(value)
        expected = torch.as_tensor(np.asarray(timms(Image.fromarray(IMAGE))))
        set_random_seed(value)
        image = ours({"img": IMAGE})["img"]
        assert image.dtype == torch.uint8
        assert torch.equal(image, expected)


@pytest.mark.parametrize("magnitude", [0, 10])
def test_posterize_at_every_strength(magnitude):
    ours = TimmAugment(33, auto_augment=f"rand-m{magnitude}-mstd0-inc1-p1.0")
    policy = next(step for step in ours.augment.transforms if hasattr(step, "ops"))
    op = next(op for op in policy.ops if op.name == "PosterizeIncreasing")
    image = np.asarray(op(Image.fromarray(IMAGE)))
    bits = 4 - int(magnitude / 10 * 4)
    assert np.array_equal(image, IMAGE & (0xFF00 >> bits & 0xFF))


def albumentations(*transforms: dict):
    return TRANSFORMS.build({"type": "AlbumentationsTransform", "transforms": list(transforms)})


CROP = {"type": "RandomResizedCrop", "size": (31, 40)}


def test_albumentations_draws_from_numpys_generator():
    ours = albumentations(CROP, {"type": "OneOf", "transforms": [{"type": "HorizontalFlip"}, {"type": "InvertImg"}]})
    results = []
    for value in (0, 1, 0, 2):
        set_random_seed(value)
        results.append(ours({"img": Image.fromarray(IMAGE)})["img"])
    assert results[0].shape == (31, 40, 3)
    assert [np.array_equal(results[0], other) for other in results[1:]] == [False, True, False]


@pytest.mark.parametrize(
    ("transform", "named"),
    [({**CROP, "foo": 1}, "'foo'"), ({"type": "OneOf", "transforms": [{"type": "Flop"}]}, "Flop")],
)
def test_mistakes_for_albumentations(transform, named):
    with pytest.raises(ValueError, match=named):
        albumentations(transform)


@pytest.mark.parametrize(
    ("size", "crop_pct", "interpolation", "crop_mode", "as_array"),
    [(48, 0.875, "bicubic", "center", True), (33, 1.0, "bilinear", "center", False), (40, 0.9, "bicubic", "squash", 0)],
)
def test_crop_is_timms(size, crop_pct, interpolation, crop_mode, as_array):
    pixels = np.random.default_rng(0).integers(0, 256, (61, 83, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    result = TimmEvalCrop(size, crop_pct, interpolation, crop_mode)({"img": pixels if as_array else image})
    # Normalised by nothing, timm's own values are pixels / 255.
    options = {"crop_pct": crop_pct, "interpolation": interpolation, "crop_mode": crop_mode}
    expected = create_transform(size, mean=(0.0,) * 3, std=(1.0,) * 3, **options)(image)
    assert result["img_shape"] == (size, size)
    np.testing.assert_allclose(result["img"].transpose(2, 0, 1) / 255, expected.numpy(), atol=1e-6)
