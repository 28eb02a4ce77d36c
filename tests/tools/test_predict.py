"""tools/predict.py: what it prints and writes, and its exit codes; tests/predict/ holds the rest."""

import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from soft_vit.data import ShapeImages
from soft_vit.data.images import decode_image
from soft_vit.predict import predict


@pytest.fixture
def exit_code(tool, tmp_path, monkeypatch) -> Callable[..., int]:
    """Return a function that runs the tool, next to a folder with two images and a broken one, for its exit code."""
    (tmp_path / "photos").mkdir()
    for index, sample in enumerate(ShapeImages(2, "test", size=64)):
        Image.fromarray(sample.image).save(tmp_path / "photos" / f"{index}.png")
    (tmp_path / "photos" / "broken.png").write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            tool("predict")([*arguments, "--model", "test_vit", "--no-pretrained"])
        return ended.value.code

    return run


def test_folder(exit_code, capsys):
    assert exit_code("photos", "--batch-size", "2", "--topk", "3") == 0
    *images, count, written = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in images] == ["photos/0.png", "photos/1.png", "photos/broken.png"]
    assert images[0].count(" %") == 3
    assert "not an image of a known format" in images[2]
    assert (count, written) == ("2 of 3 images predicted.", "Written: predictions")
    results = json.loads(Path("predictions/predictions.json").read_text())
    assert results["task"] == "classification"
    for entry in results["images"]:
        assert len(entry["predictions"]) == 3
        assert Image.open(Path("predictions") / entry["drawing"]).width == 384
    assert exit_code("photos/broken.png", "--out", "new", "--no-draw") == 1
    assert "0 of 1 images predicted" in capsys.readouterr().out


def test_standard_input(exit_code, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(Path("photos/0.png").read_bytes())))
    assert exit_code("-", "photos/0.png") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("-: ")
    # The same image in a batch of two.
    assert lines[0].removeprefix("-") == lines[1].removeprefix("photos/0.png")
    assert {"image.png", "0.png"} <= {path.name for path in Path("predictions").iterdir()}


def test_sigterm_keeps_the_results_so_far(exit_code, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    decoded = []

    def decode_and_stop(data: bytes) -> Image.Image:
        if decoded:
            os.kill(os.getpid(), signal.SIGTERM)
        decoded.append(decode_image(data))
        return decoded[-1]

    monkeypatch.setattr(predict, "decode_image", decode_and_stop)
    try:
        assert exit_code("photos", "--batch-size", "1") == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(json.loads(Path("predictions/predictions.json").read_text())["images"]) == 1
