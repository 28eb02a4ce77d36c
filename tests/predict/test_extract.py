"""Features of images and tiles are those of the model, lie where their boxes say, and a stopped run continues."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

from soft_vit.data.features import read_features
from soft_vit.predict import TimmFeatures, extract_files

PIXELS = np.random.default_rng(0).integers(0, 256, (67, 93, 3), dtype=np.uint8)


@pytest.fixture
def images(tmp_path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    Image.fromarray(PIXELS).save(folder / "a.png")
    (folder / "b.jpg").write_bytes(b"not an image")
    return folder


def expected(model: torch.nn.Module, part: np.ndarray, whole: bool, maps: bool) -> torch.Tensor:
    """The features of a part of the image, by timm's own functions."""
    how = resolve_model_data_config(model) | ({"crop_pct": 1.0, "crop_mode": "squash"} if whole else {})
    x = create_transform(**how)(Image.fromarray(part))[None]
    if maps:
        return model.forward_features(x)[0]
    model.reset_classifier(0)
    return model(x)[0]


@pytest.mark.parametrize(
    ("tiles", "overlap", "count", "maps", "file_format"),
    [
        (None, 0.0, 1, False, "npz"),
        (40, 0.25, 6, True, "npz"),
        (70, 0.0, 2, False, "safetensors"),
        (200, 0.5, 1, False, "npz"),
        (None, 0.0, 1, True, "safetensors"),
    ],
)
def test_features_lie_where_their_boxes_say(images, tmp_path, tiles, overlap, count, maps, file_format):
    timm.models.save_for_hf(timm.create_model("test_resnet").eval(), tmp_path / "model")
    name = f"local-dir:{tmp_path / 'model'}"
    features = TimmFeatures(name, tiles=tiles, overlap=overlap, maps=maps)
    outcome = extract_files([images], features, tmp_path / "out", file_format=file_format, batch_size=4)
    assert (len(outcome.results["images"]), len(outcome.results["failed"]), outcome.exit_code) == (1, 1, 0)
    found, note = read_features(tmp_path / "out" / f"a.png.{file_format}")
    assert (len(found["features"]), note["tiles"], note["image"]) == (count, tiles, str(images / "a.png"))
    model, covered = timm.create_model(name, pretrained=True).eval(), np.zeros(PIXELS.shape[:2], int)
    for row, (x, y, width, height) in zip(found["features"], found["boxes"].tolist(), strict=True):
        covered[y : y + height, x : x + width] += 1
        with torch.inference_mode():
            one = expected(model, PIXELS[y : y + height, x : x + width], bool(tiles or maps), maps)
        torch.testing.assert_close(row, one, rtol=1e-4, atol=1e-5)
    assert covered.min() == 1


class Stopped(TimmFeatures):
    """Is interrupted when it sees the given number of batches."""

    left = 3

    def __call__(self, images: list) -> torch.Tensor:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().__call__(images)


def test_a_stopped_run_continues_with_the_next_tile_and_other_settings_are_refused(images, tmp_path):
    tifffile = pytest.importorskip("tifffile")
    (images / "a.png").unlink()
    tifffile.imwrite(images / "a.tif", PIXELS, tile=(16, 32), photometric="rgb")

    def extract(kind: type, out: str, **options) -> int:
        features = kind("soft_pico", tiles=20, img_size=64, **options)
        return extract_files([images], features, tmp_path / out, batch_size=4).exit_code

    assert extract(Stopped, "out") == 130
    # One batch tells the shape, and two of five are done. A row is torn.
    (part,) = (tmp_path / "out").glob(".*.part")
    part.write_bytes(part.read_bytes() + b"1")
    Stopped.left = 4
    assert (extract(Stopped, "out"), extract(TimmFeatures, "whole")) == (0, 0)
    both = [(tmp_path / out / "a.tif.safetensors").read_bytes() for out in ("out", "whole")]
    assert both[0] == both[1]
    assert not list((tmp_path / "out").glob(".*"))
    with pytest.raises(ValueError, match=r"overlap=0\.5"):
        extract(TimmFeatures, "out", overlap=0.5)
    (tmp_path / "out" / "a.tif.safetensors").write_bytes(both[0][:-1])
    with pytest.raises(ValueError, match="whole"):
        extract(TimmFeatures, "out")
