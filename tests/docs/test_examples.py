"""Examples run."""

import runpy
import sys

import pytest
from documents import ROOT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [("siglip2_resolutions", ["2"], "4 tokens  soft_vit_linear"), ("naflex_rates", ["6", "3"], "squares ")],
)
def test_example(name, arguments, line, monkeypatch, capsys):
    pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(ROOT / "docs" / "examples" / f"{name}.py"))
    assert line in capsys.readouterr().out
