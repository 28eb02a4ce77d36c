"""tools/predict.py: what it prints and writes, and its exit codes."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

from soft_vit.data import CLASSES, ShapeImages
from soft_vit.predict import predict


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    """Return the folder photos in the working directory, with two images and a broken one."""
    (tmp_path / "photos").mkdir()
    for index, sample in enumerate(ShapeImages(2, "test", size=64)):
        Image.fromarray(sample.image).save(tmp_path / "photos" / f"{index}.png")
    (tmp_path / "photos" / "broken.png").write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "photos"


@pytest.fixture
def exit_code(tool, photos) -> Callable[..., int]:
    """Return a function that runs the tool and returns its exit code."""

    def run(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            tool("predict")(arguments)
        return ended.value.code

    return run


@pytest.fixture
def checkpoint(tmp_path) -> str:
    torch.manual_seed(0)
    path = tmp_path / "weights.pth"
    weights = timm.create_model("soft_pico", num_classes=10, img_size=64).state_dict()
    torch.save({"state_dict": weights, "meta": {"dataset_meta": {"classes": CLASSES}}}, path)
    return str(path)


def test_folder(exit_code, demo, checkpoint, capsys):
    assert exit_code("photos", "--config", demo, "--checkpoint", checkpoint, "--batch-size", "2") == 0
    printed = capsys.readouterr()
    assert "3/3" in printed.err
    assert printed.out.startswith(
        "2 of 3 images predicted.\n1 failed:\n  photos/broken.png: not an image of a known format"
    )
    results = json.loads(Path("predictions/predictions.json").read_text())
    assert results["task"] == "classification"
    assert results["checkpoint"] == checkpoint
    for entry in results["images"]:
        assert len(entry["predictions"]) == 5
        assert Image.open(Path("predictions") / entry["drawing"]).width == 384


def test_single_image(exit_code, checkpoint, capsys):
    options = ["--model", "soft_pico", "--checkpoint", checkpoint, "--img-size", "64", "--topk", "10", "--out", "new"]
    assert exit_code("photos/1.png", *options) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    note, *lines, written = printed.out.splitlines()
    assert note.startswith(f"Note: {checkpoint} does not give the normalisation")
    shares = {line.split("%")[1].strip(): float(line.split("%")[0]) for line in lines}
    assert set(shares) == set(CLASSES)
    assert sum(shares.values()) == pytest.approx(100, abs=0.5)
    assert written == "Written: new"


def test_without_drawings(exit_code, capsys):
    assert exit_code("photos/0.png", "photos/1.png", "--model", "test_vit", "--no-pretrained", "--no-draw") == 0
    assert [path.name for path in Path("predictions").iterdir()] == ["predictions.json"]


def test_nothing_predicted_is_exit_code_1(exit_code, capsys):
    assert exit_code("photos/broken.png", "--model", "test_vit", "--no-pretrained") == 1
    printed = capsys.readouterr().out
    assert "0 of 1 images predicted" in printed
    assert "Written" not in printed


def test_sigterm_keeps_the_results_so_far(exit_code, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    read = predict.read_input

    def read_and_stop(path: Path) -> Image.Image:
        if path.name == "1.png":
            os.kill(os.getpid(), signal.SIGTERM)
        return read(path)

    monkeypatch.setattr(predict, "read_input", read_and_stop)
    try:
        assert exit_code("photos", "--model", "test_vit", "--no-pretrained", "--batch-size", "1") == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(json.loads(Path("predictions/predictions.json").read_text())["images"]) == 1
