"""CONTRIBUTING.md: its example runs, its lists are complete, and the version is the same everywhere."""

import re
import sys

import timm
import torch
import yaml
from documents import ROOT, blocks

from soft_vit import models
from soft_vit.layers import attention
from soft_vit.version import __version__

TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def test_worked_example_of_an_attention(tmp_path, monkeypatch):
    """As printed: the file as a module of its package, the lines where the table is, the test case by itself."""
    file, lines, case = blocks(TEXT, "python")
    (tmp_path / "relu.py").write_text(file)
    monkeypatch.setattr(attention, "__path__", [*attention.__path__, str(tmp_path)])
    names = {}
    try:
        exec(lines, dict(vars(attention)))
        exec(case, names)
        names["test_equals_the_dense_formula"]()
        assert "relu_pyramid_tiny" in models.pyramid._pyramid_models()
        model = timm.create_model("soft_pico", attention="relu", img_size=64).eval()
        assert type(model.stages[0].blocks[0].attn).__name__ == "ReluAttention"
        assert model(torch.randn(1, 3, 64, 64)).isfinite().all()
    finally:
        attention.ATTENTIONS.pop("relu", None)
        sys.modules.pop("soft_vit.layers.attention.relu", None)
        vars(attention).pop("relu", None)


def test_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert {reference["identifiers"][0]["value"] for reference in citation["references"]} == {
        "arXiv:2110.11945",
        "arXiv:2207.03341",
    }
    versions = re.findall(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == __version__
