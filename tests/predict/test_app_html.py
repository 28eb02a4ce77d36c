"""Pieces of the page for a look whose numbers are known."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from soft_vit.predict import RankedClasses, app_html
from soft_vit.predict.app_look import Choice, LayerLook, Look
from soft_vit.probe.health import Probe

PICTURE = Image.new("RGB", (8, 8), "grey")


def layer_of(matrix: torch.Tensor | None) -> LayerLook:
    return LayerLook(2, 1, Probe("soft", 5e-4, 0.98), matrix)


def look_of(*layers: LayerLook) -> Look:
    return Look(RankedClasses([0], ["<b>star</b>"], [0.25]), (64, 96), [], list(layers), list(layers))


def test_maps_show_each_head_and_follow_the_place():
    torch.manual_seed(0)
    look = look_of(layer_of(torch.rand(2, 5, 5)))
    first, second = (app_html.maps_html(look, PICTURE, place) for place in ((0.1, 0.1), (0.9, 0.9)))
    assert re.findall(r"<figcaption>([\w ]+) <small>", first) == ["mean", "head 1", "head 2"]
    assert "Stage 2, layer 1: soft" in first
    assert len(set(re.findall(r"src='(data:image/png;base64,[^']+)'", first + second))) == 6


def test_an_attention_without_a_matrix_and_a_dead_one():
    look = look_of(layer_of(None))
    assert "not linear in its values" in app_html.maps_html(look, PICTURE, (0, 0))
    assert "<figure" not in app_html.spectra_html(look)
    text = app_html.shares_html(look)
    assert "2.1 soft" in text
    assert "0.05 % (dead), 98 %" in text


@pytest.mark.parametrize(("matrix", "needed"), [(torch.eye(10)[None], "9 of 10"), (torch.ones(1, 10, 10), "1 of 10")])
def test_spectra(matrix, needed):
    text = app_html.spectra_html(look_of(layer_of(matrix)))
    assert f"90 % in {needed}" in text
    points = np.array([pair.split(",") for pair in re.search(r"points='([^']+)'", text)[1].split()], dtype=float)
    expected = points[:, 0] if needed[0] == "9" else 100 * (points[:, 0] > 0)
    np.testing.assert_allclose(100 - points[:, 1], expected, atol=0.1)
    # A larger matrix is left to the tool.
    text = app_html.spectra_html(look_of(layer_of(torch.zeros(1, 1025, 1))))
    assert "Without stage 2: tools/analysis/attention_spectrum.py" in text


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Choice("soft_pico"), "Random weights"),
        (Choice("soft_pico.shapes", True), "top-1 97.3 % on generated shapes"),
        (Choice("soft_pico", checkpoint="<x>.pth"), "Weights of &lt;x&gt;.pth"),
    ],
)
def test_summary_names_the_weights_and_escapes_text(choice, said):
    text = app_html.summary_html(choice, look_of())
    assert said in text
    assert "64 x 96 pixels" in text
    assert "&lt;b&gt;star&lt;/b&gt;" in text
    assert "<b>" not in text
