"""tools/export.py: what it prints and writes."""

import pytest
import torch


# tests/export writes the same file, and tests/test_pages.py runs the command.
@pytest.mark.slow
def test_export(tool, tmp_path, capsys):
    out = tmp_path / "vit.pt2"
    tool("export")(f"--model test_vit --no-pretrained --img-size 64 --format torch_export --out {out}".split())
    printed = capsys.readouterr().out
    assert "5 x 64 x 64: relative error" in printed
    assert f"Written: {out}" in printed
    assert torch.export.load(out).module()(torch.zeros(3, 3, 64, 64)).shape == (3, 1000)
