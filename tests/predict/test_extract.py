"""Features of images and tiles are those of the model, lie where their boxes say, and a stopped run continues."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

from soft_vit.data.features import read_features
from soft_vit.predict.extract import TimmFeatures, extract_files

PIXELS = np.random.default_rng(0).integers(0, 256, (67, 93, 3), dtype=np.uint8)
TILES = [(None, 0.0, 1, False, "npz"), (40, 0.25, 6, True, "npz"), (70, 0.0, 2, False, "safetensors")]
TILES += [(200, 0.5, 1, False, "npz"), (None, 0.0, 1, True, "safetensors")]


@pytest.mark.parametrize(("tiles", "overlap", "count", "maps", "file_format"), TILES)
def test_features_lie_where_their_boxes_say(tmp_path, tiles, overlap, count, maps, file_format):
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    (tmp_path / "b.jpg").write_bytes(b"not an image")
    timm.models.save_for_hf(timm.create_model("test_resnet"), tmp_path / "model")
    features = TimmFeatures(f"local-dir:{tmp_path / 'model'}", tiles=tiles, overlap=overlap, maps=maps)
    outcome = extract_files([tmp_path], features, tmp_path / "out", file_format=file_format, batch_size=4)
    assert (len(outcome.results["images"]), len(outcome.results["failed"]), outcome.exit_code) == (1, 1, 0)
    found, note = read_features(tmp_path / "out" / f"a.png.{file_format}")
    assert (len(found["features"]), note["tiles"], note["image"]) == (count, tiles, str(tmp_path / "a.png"))
    model = timm.create_model(features.made_with["model"], pretrained=True).eval()
    how = resolve_model_data_config(model) | ({"crop_pct": 1.0, "crop_mode": "squash"} if tiles or maps else {})
    model.reset_classifier(0, "" if maps else None)
    for row, (x, y, width, height) in zip(found["features"], found["boxes"].tolist(), strict=True):
        part = create_transform(**how)(Image.fromarray(PIXELS[y : y + height, x : x + width]))
        torch.testing.assert_close(row, model(part[None])[0].detach(), rtol=1e-4, atol=1e-5)


class Stopped(TimmFeatures):
    """Is interrupted after the given number of batches."""

    left = 3

    def __call__(self, images: list) -> torch.Tensor:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().__call__(images)


def test_a_stopped_run_continues_with_the_next_tile_and_other_settings_are_refused(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "a.svs", PIXELS, tile=(16, 32), photometric="rgb")

    def extract(kind: type, out: str, **options) -> bytes:
        extract_files([tmp_path], kind("soft_pico", tiles=20, img_size=64, **options), tmp_path / out, batch_size=4)
        return (tmp_path / out / "a.svs.safetensors").read_bytes()

    # One batch tells the shape, and two of five are done. A row is torn.
    with pytest.raises(KeyboardInterrupt):
        extract(Stopped, "out")
    (part,) = (tmp_path / "out").glob(".*.part")
    part.write_bytes(part.read_bytes() + b"1")
    Stopped.left = 4
    whole = extract(TimmFeatures, "whole")
    assert extract(Stopped, "out") == whole
    assert not list((tmp_path / "out").glob(".*"))
    with pytest.raises(ValueError, match=r"overlap=0\.5"):
        extract(TimmFeatures, "out", overlap=0.5)
    (tmp_path / "out" / "a.svs.safetensors").write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="whole"):
        extract(TimmFeatures, "out")
