"""tools/attention_spectrum.py from its arguments to its files."""

import csv
import sys

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from soft_vit.data.shapes import draw_shape
from soft_vit.weights.folders import RESOURCES


def test_a_run_on_generated_shapes(tool, tmp_path, capsys):
    prefix = tmp_path / "new" / "soft.v1"
    tool("attention_spectrum")(["soft_pico", "--img-size", "64", "--images", "2", "--out", str(prefix)])
    assert (tmp_path / "new" / "soft.v1.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "new" / "soft.v1.csv").open()))
    assert {(row["stage"], row["attention"], row["tokens"]) for row in rows} == {
        ("1", "soft", "256"),
        ("2", "soft", "64"),
        ("3", "soft", "16"),
        ("4", "softmax", "5"),
    }
    assert "soft_pico, random weights, 64 x 64, images: 2" in capsys.readouterr().out


def test_images_and_weights_from_files(tool, tmp_path):
    """The same weights and images give the same table, other weights another."""
    image, checkpoint, out = tmp_path / "image.png", tmp_path / "weights.pth", tmp_path / "out"
    Image.fromarray(draw_shape(0, 3, 100).image).convert("L").save(image)
    arguments = ["linformer_pyramid_pico", image, "--img-size", 64, "--checkpoint", checkpoint, "--out", out]
    tables = []
    for run, seed in enumerate((1, 1, 2)):
        torch.manual_seed(seed)
        torch.save(timm.create_model("linformer_pyramid_pico", img_size=64, num_classes=10).state_dict(), checkpoint)
        torch.manual_seed(10 + run)
        tool("attention_spectrum")([str(argument) for argument in arguments])
        tables.append((tmp_path / "out.csv").read_text())
    assert tables[0] == tables[1] != tables[2]


def test_shapes_reach_recorded_weights_as_in_their_training(tool, tmp_path, capsys):
    """The recorded weights, given as a file, see shapes that are normalised as the demo's config does."""
    recorded = str(RESOURCES / "checkpoints" / "soft_pico.shapes.safetensors")
    tables = []
    for weights in (["--pretrained"], ["--checkpoint", recorded]):
        out = str(tmp_path / "out")
        tool("attention_spectrum")(["soft_pico", "--img-size", "64", "--images", "1", "--out", out, *weights])
        tables.append(np.loadtxt(f"{out}.csv", delimiter=",", skiprows=1, usecols=6))
    # Written with six digits.
    np.testing.assert_allclose(*tables, atol=2e-6)
    said = capsys.readouterr().out
    assert "soft_pico.shapes, pretrained, 64 x 64, images: 1" in said
    assert "soft_pico, soft_pico.shapes.safetensors, 64 x 64, images: 1" in said


def test_the_table_is_there_without_matplotlib(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit) as end:
        tool("attention_spectrum")(["soft_pico", "--img-size", "64", "--images", "1", "--out", str(tmp_path / "out")])
    assert end.value.code == 1
    assert "pip install 'soft_vit[analysis]'" in capsys.readouterr().err
    assert (tmp_path / "out.csv").read_text().startswith("stage,layer")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no_such_model"], "no_such_model is not a pyramid of this package"),
        (["resnet50"], "resnet50 is not a pyramid of this package"),
        (["soft_pico", "--img-size", "20"], "20 x 20 pixels is too small"),
        (["soft_pico", "--checkpoint", "missing.pth"], "no checkpoint missing.pth"),
        (["soft_norm_pico", "--pretrained"], "No pretrained weights exist for soft_norm_pico"),
        (["soft_pico", "missing.png"], "There is no image missing.png"),
        (["soft_pico", "--out", f"{__file__}/out"], "out.png cannot be written"),
        (["soft_pico", __file__], "test_attention_spectrum.py cannot be read"),
    ],
)
def test_a_mistake_ends_in_one_sentence(tool, arguments, sentence, capsys):
    with pytest.raises(SystemExit) as end:
        tool("attention_spectrum")(arguments)
    assert end.value.code == 1
    error = capsys.readouterr().err
    assert "error: " in error
    assert sentence in error
