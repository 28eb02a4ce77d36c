"""The command on a small teacher: weights, report and pictures, and a second call that has nothing left to do."""

import re
from pathlib import Path

import pytest
import timm
import torch
from documents import ROOT, run_tool
from linearise.test_linearise import folder_of_images, small_vit
from PIL import Image

from soft_vit.linearise import load_backbone
from soft_vit.linearise.train import split_steps


def test_command_writes_weights_and_a_report(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tools").symlink_to(ROOT / "tools")
    monkeypatch.setattr("soft_vit.linearise.report.MAX_SIDE", 24)
    monkeypatch.setattr("soft_vit.linearise.report.SHOWN", 1)
    timm.models.save_for_hf(small_vit(patch_size=4, img_size=16), tmp_path / "teacher", safe_serialization=True)
    folder_of_images(tmp_path / "images")
    command = "python tools/linearise.py --teacher teacher --kind linear --images images --out out --size 16 32 "
    command += "--steps 8 --batch-size 2 --keep-softmax 1 --kind-options key_norm=instance --workers 0 --bf16"
    run_tool(command)
    shown = capsys.readouterr().out
    text = (tmp_path / "out" / "report.md").read_text()
    assert text.strip() == shown.strip()
    assert command in text
    assert "key_norm=instance in 1 of 2 blocks, from 3 images" in text
    assert re.findall(r"^\| (swap|phase \d) \|", text, re.MULTILINE) == ["swap", "phase 1", "phase 2", "phase 3"]
    choices = re.findall(r"^\| (\w+) \| [\d, ]* \| [\d.]+ \|$", text, re.MULTILINE)
    assert choices[:4] == ["greedy", "first", "last", "random"]
    assert [int(row) for row in re.findall(r"^\| (\d+) \| \d+ \| \d\.\d+ \|", text, re.MULTILINE)] == [16, 32, 64]
    for name in re.findall(r"\((\w+\.png)\)", text):
        with Image.open(tmp_path / "out" / name) as image:
            assert image.width > 300
    student = load_backbone(str(tmp_path / "out"))
    x = torch.randn(1, 3, 32, 48)
    expected = student(x)
    # It ends at once, and writes the same weights. Drawings take most of the time.
    for draw in ("_draw_features", "_draw_curves"):
        monkeypatch.setattr(f"soft_vit.linearise.report.{draw}", lambda *_: None)
    run_tool(command)
    assert torch.equal(load_backbone(str(tmp_path / "out"))(x), expected)


def test_steps_of_the_phases() -> None:
    assert split_steps([12], 1) == (4, 8, 0)
    assert split_steps([12], 2) == (4, 5, 3)
    assert split_steps([1, 2, 3], 2) == (1, 2, 3)
    for steps, sizes in (([1, 2], 1), ([1, 2, 3], 1), ([1, 2, 0], 2), ([0], 1), ([-1, 2, 0], 1)):
        with pytest.raises(ValueError, match="steps"):
            split_steps(steps, sizes)
