"""Tools of tools/analysis/ on images and weights in files; tests/test_pages.py runs what pages show."""

import csv
import re
import sys

import numpy as np
import pytest
from PIL import Image

from soft_vit.data import CLASSES, ShapeImages
from soft_vit.weights.files import RESOURCES

SMALL = ["--model", "soft_pico", "--img-size", "64"]


def test_attention_health_on_images_of_a_folder(tool, tmp_path, capsys):
    for number, sample in enumerate(ShapeImages(20, "val")):
        (tmp_path / CLASSES[sample.label]).mkdir(exist_ok=True)
        Image.fromarray(sample.image).save(tmp_path / CLASSES[sample.label] / f"{number}.png")
    data, few = str(tmp_path), ["--num-images", "20", "--num-matrices", "1"]
    tool("attention_health")(["--model", "soft_pico", "--data", data, *few])
    top1 = re.search(r"Top-1 ([\d.]+) %, .* on 20 images", capsys.readouterr().out)
    assert float(top1[1]) > 90, "98 % on all generated images"
    with pytest.raises(SystemExit, match="1000 classes"):
        tool("attention_health")(["--model", "soft_tiny", "--no-pretrained", "--data", data, *few])


# A convolutional model takes no img_size.
@pytest.mark.parametrize("arguments", ["resnet18", f"--config {RESOURCES}/configs/soft_tiny.py"])
def test_get_flops(arguments, tool, capsys):
    tool("get_flops")([*arguments.split(), "--img-size", "64x96", "--depth", "1"])
    assert re.match(r"(resnet18|soft_tiny), 64 x 96, torch (.|\n)*(layer1|stages)", capsys.readouterr().out)


def test_spectrum_of_generated_shapes(tool, tmp_path, monkeypatch):
    """Published weights are the default. As a file, they get shapes normalised as in their training."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    tables = []
    for weights in ([], ["--checkpoint", str(RESOURCES / "checkpoints" / "soft_pico.shapes.safetensors")]):
        with pytest.raises(SystemExit, match=r"pip install 'soft_vit\[analysis\]'"):
            tool("attention_spectrum")([*SMALL, "--shapes", "1", "--out", f"{tmp_path}/new/soft.v1", *weights])
        tables.append(list(csv.DictReader((tmp_path / "new" / "soft.v1.csv").open())))
    # Written with six digits.
    np.testing.assert_allclose(*([float(row["cumulative"]) for row in table] for table in tables), atol=2e-6)


def test_where_a_token_looks(tool, photo, tmp_path, capsys):
    out = tmp_path / "new" / "row.png"
    tool("visualize_attention")([photo, *SMALL, "--stage", "3", "--query", "1", "2", "--out", str(out)])
    assert "soft_pico.shapes, pretrained: soft, stage 3, query 1 2" in capsys.readouterr().out
    assert Image.open(out).width > 500
