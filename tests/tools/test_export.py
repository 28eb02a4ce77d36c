"""tools/export.py: what it prints and writes, and its mistakes in one sentence."""

import pytest
import torch


def test_writes_a_verified_file(tool, tmp_path, capsys):
    out = tmp_path / "pico.pt"
    tool("export")(["soft_pico", "--no-pretrained", "--img-size", "64", "--format", "torchscript", "-o", str(out)])
    printed = capsys.readouterr().out
    assert [line[:5] for line in printed.splitlines() if line.startswith("[")] == ["[1/3]", "[2/3]", "[3/3]"]
    assert "5 x 64 x 64: max absolute error" in printed
    assert torch.jit.load(str(out))(torch.zeros(3, 3, 64, 64)).shape == (3, 1000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "torchscript"], "Neither"),
        (["soft_picco", "--format", "torchscript"], "did you mean soft_pico"),
        (["soft_pico", "--no-pretrained", "--format", "onnx"], "does not end in .onnx"),
        (["soft_pico", "--no-pretrained", "--format", "torchscript", "--dynamic-size"], "one size of images"),
        (["soft_pico", "--no-pretrained", "--format", "torchscript", "--features", "4"], "choose some of 0 to 3"),
        (["test_vit", "--no-pretrained", "--checkpoint", "none.pth", "--format", "torchscript"], "none.pth"),
    ],
)
def test_mistake_ends_in_one_sentence(tool, arguments, message, tmp_path):
    out = tmp_path / "model.pt"
    with pytest.raises(SystemExit) as caught:
        tool("export")([*arguments, "-o", str(out)])
    assert caught.value.code.startswith("error: ")
    assert message in caught.value.code
    assert "\n" not in caught.value.code
    assert not out.exists()
