"""Examples run."""

import runpy
import sys

import pytest
from documents import ROOT


@pytest.mark.parametrize(("name", "arguments"), [("siglip2_resolutions", ["2"])])
def test_example(name, arguments, monkeypatch, capsys):
    pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(ROOT / "docs" / "examples" / f"{name}.py"))
    assert "4 tokens  soft_vit_linear" in capsys.readouterr().out
