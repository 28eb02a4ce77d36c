"""tools/weights/check_checkpoint.py: what it says of a file, and its exit code."""

import os
import re

import pytest
import timm
import torch
from crafted import Call
from released import released_shapes
from safetensors.torch import save_file

from soft_vit.weights import ENTRIES
from soft_vit.weights.files import INDEX_FILE

SHAPES = INDEX_FILE.parent / "soft_pico.shapes.safetensors"


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    """Of the released names and shapes, with one number in each."""
    return {name: torch.zeros(()).expand(shape) for name, shape in released_shapes().items()}


def test_a_shipped_file(tool, capsys):
    tool("check_checkpoint")([str(SHAPES)])
    said = capsys.readouterr().out
    assert f"{SHAPES}: It holds weights of soft_pico" in said
    assert "10 classes" in said
    assert ENTRIES["soft_pico.shapes"].sha256 in said
    assert "pretrained=True reads it for soft_pico.shapes." in said


def test_a_file_of_the_zoo(tool, tmp_path, capsys):
    shapes = timm.create_model("mlla_tiny", device="meta").state_dict()
    content = {name: torch.zeros(()).expand(value.shape) for name, value in shapes.items()}
    torch.save({"model": content}, tmp_path / "MLLA_T.pth")
    tool("check_checkpoint")([str(tmp_path / "MLLA_T.pth")])
    said = capsys.readouterr().out
    assert "It holds weights of mlla_tiny: 24." in said
    assert "For pretrained=True of mlla_tiny.leaplab_in1k, put it into " in said
    (tmp_path / "MLLA_T.pth").rename(tmp_path / "MLLA_S.pth")
    with pytest.raises(SystemExit):
        tool("check_checkpoint")([str(tmp_path / "MLLA_S.pth")])
    assert re.search(r"of mlla_small.*, got those of mlla_tiny", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("SOFT_Tiny_norm.pth", {}, "For pretrained=True of soft_norm_tiny.fudan_in1k, put it into "),
        ("mine.pth", {"arch": "soft_norm_tiny"}, "Its notes name the model.*recorded under the name mine.pth"),
    ],
)
def test_a_released_file(name, content, said, weights, tool, tmp_path, capsys):
    torch.save({"state_dict": weights, **content}, tmp_path / name)
    tool("check_checkpoint")([str(tmp_path / name)])
    assert re.search(said, capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("nowhere.pth", None, "There is no checkpoint"),
        ("SOFT_Large_norm.pth", "tiny", "of soft_norm_large.*, got those of soft_tiny or soft_norm_tiny"),
        ("SOFT_Tiny.pth", "normalised", "of soft_tiny.*, got those of soft_norm_tiny"),
        ("mine.pth", "not finite", r"norm\.bias .* not finite"),
        ("mine.pth", "attack", "could run code"),
        ("mine.pth", "foreign", "such as conv1.weight"),
        (SHAPES.name, "safetensors", r"is not the file of soft_pico\.shapes"),
    ],
)
def test_refused(name, kind, said, weights, tool, tmp_path, capsys):
    path, content = tmp_path / name, {"state_dict": weights}
    contents = {
        "tiny": content,
        "normalised": {**content, "arch": "soft_norm_tiny"},
        "not finite": {"state_dict": {**weights, "norm.bias": torch.full((512,), float("inf"))}},
        "attack": {**content, "extra": Call(os.system, f"touch {tmp_path / 'executed'}")},
        "foreign": {"conv1.weight": torch.ones(1)},
    }
    if kind == "safetensors":
        save_file({"norm.bias": torch.zeros(1)}, path)
    elif kind is not None:
        torch.save(contents[kind], path)
    with pytest.raises(SystemExit) as ended:
        tool("check_checkpoint")([str(path), str(SHAPES)])
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert re.search(said, printed.err)
    assert printed.err.startswith("error: ")
    # What is in quotes is a command.
    assert printed.err.split("`")[0].count(str(path)) == 1
    assert len(printed.err.splitlines()) == 1
    # The other file is looked at all the same.
    assert f"{SHAPES}: It holds" in printed.out
    assert not (tmp_path / "executed").exists()
