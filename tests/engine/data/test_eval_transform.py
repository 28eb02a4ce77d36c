"""The transforms of a test pipeline against timm's."""

import numpy as np
import pytest
from PIL import Image
from timm.data import create_transform

from soft_vit.engine import LoadedImage, TimmEvalCrop


@pytest.mark.parametrize(
    ("size", "crop_pct", "interpolation", "crop_mode"),
    [(48, 0.875, "bicubic", "center"), (33, 1.0, "bilinear", "center"), (40, 0.9, "bicubic", "squash")],
)
@pytest.mark.parametrize("as_array", [False, True])
def test_crop_is_timms(size, crop_pct, interpolation, crop_mode, as_array):
    pixels = np.random.default_rng(0).integers(0, 256, (61, 83, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    result = TimmEvalCrop(size, crop_pct, interpolation, crop_mode)({"img": pixels if as_array else image})
    # Normalised by nothing, timm's own values are pixels / 255.
    options = {"crop_pct": crop_pct, "interpolation": interpolation, "crop_mode": crop_mode}
    expected = create_transform(size, mean=(0.0,) * 3, std=(1.0,) * 3, **options)(image)
    assert result["img_shape"] == (size, size)
    np.testing.assert_allclose(result["img"].transpose(2, 0, 1) / 255, expected.numpy(), atol=1e-6)


def test_images_that_no_data_set_handed_over_become_rgb():
    """Inferencers of mmpretrain read in the order of mmcv, BGR; data sets here hand over RGB, and a number."""
    red = np.zeros((5, 7, 3), dtype=np.uint8)
    red[..., 2] = 255
    shown = LoadedImage()({"img": red})["img"]
    assert (shown[..., 0] == 255).all()
    assert not shown[..., 1:].any()
    assert shown.flags.c_contiguous
    results = {"img": shown, "sample_idx": 0}
    assert LoadedImage()(results)["img"] is shown
