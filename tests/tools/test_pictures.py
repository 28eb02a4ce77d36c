"""Plots and tables of tools/analysis/{attention_spectrum,visualize_attention}.py, and the weights that they use."""

import csv
import sys

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from soft_vit.weights.files import RESOURCES

SMALL = ["--model", "soft_pico", "--img-size", "64", "--device", "cpu"]


def test_spectrum_of_generated_shapes(tool, tmp_path, capsys):
    """Published weights are the default. As a file, they get shapes normalised as in their training."""
    recorded = str(RESOURCES / "checkpoints" / "soft_pico.shapes.safetensors")
    tables = []
    for weights in ([], ["--checkpoint", recorded]):
        tool("attention_spectrum")([*SMALL, "--shapes", "1", "--out", f"{tmp_path}/new/soft.v1", *weights])
        tables.append(list(csv.DictReader((tmp_path / "new" / "soft.v1.csv").open())))
    assert (tmp_path / "new" / "soft.v1.png").read_bytes().startswith(b"\x89PNG")
    assert {(row["stage"], row["attention"], row["tokens"]) for row in tables[0]} == {
        ("1", "soft", "256"),
        ("2", "soft", "64"),
        ("3", "soft", "16"),
        ("4", "softmax", "5"),
    }
    # Written with six digits.
    np.testing.assert_allclose(*([float(row["cumulative"]) for row in table] for table in tables), atol=2e-6)
    said = capsys.readouterr().out
    assert "soft_pico.shapes, pretrained, 64 x 64, images: 1" in said
    assert "soft_pico, soft_pico.shapes.safetensors, 64 x 64, images: 1" in said


def test_spectrum_of_images_and_weights_in_files(tool, photo, tmp_path):
    """The same weights and images give the same table, and other weights give another."""
    name, tables = "linformer_pyramid_pico", []
    for run, seed in enumerate((1, 1, 2)):
        torch.manual_seed(seed)
        torch.save(timm.create_model(name, img_size=64, num_classes=10).state_dict(), "weights.pth")
        torch.manual_seed(10 + run)
        tool("attention_spectrum")([photo, *SMALL, "--model", name, "--checkpoint", "weights.pth", "--out", "out"])
        tables.append((tmp_path / "out.csv").read_text())
    assert tables[0] == tables[1] != tables[2]


def test_spectrum_without_matplotlib_is_a_table(mistake, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = mistake("attention_spectrum", *SMALL, "--no-pretrained", "--shapes", 1, "--out", tmp_path / "out")
    assert "pip install 'soft_vit[analysis]'" in said
    assert (tmp_path / "out.csv").read_text().startswith("stage,layer")


@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        ("--no-pretrained --stage 3 --query 1 2", "soft_pico, random weights: soft, stage 3, query 1 2"),
        ("--stage 2", "soft_pico.shapes, pretrained: soft, stage 2, query 4 4"),
    ],
)
def test_where_a_token_looks(tool, photo, arguments, title, tmp_path, capsys):
    out = tmp_path / "new" / "row.png"
    tool("visualize_attention")([photo, *SMALL, *arguments.split(), "--out", str(out)])
    assert title in capsys.readouterr().out
    assert Image.open(out).width > 500
