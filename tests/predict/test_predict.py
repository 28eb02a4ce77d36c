"""Many images: what is written, also when files are bad or the run is interrupted."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from soft_vit.predict import ClassMap, Outcome, RankedClasses, predict_files
from soft_vit.predict.results import Result


class Brightness:
    """Predicts the brightness of an image; calls `then` after `after` images."""

    def __init__(self, after: int | None = None, then: Callable[[], None] | None = None) -> None:
        self.notes: list[str] = []
        self.batches: list[int] = []
        self.after = after
        self.then = then

    def __call__(self, images: Sequence[Image.Image]) -> list[Result]:
        if self.after is not None and sum(self.batches) >= self.after:
            self.then()
        self.batches.append(len(images))
        return [RankedClasses([0], ["bright"], [float(np.asarray(image).mean()) / 255]) for image in images]


@pytest.fixture
def photos(tmp_path) -> Path:
    """Seven images in three folders, four of them called a.png."""
    folder = tmp_path / "photos"
    for index, name in enumerate(["a.png", "b.jpg", "c.gif", "x/a.png", "y/a.png", "y/z/a.png", "y/d.bmp"]):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20 + index, 30), (30 * index,) * 3).save(path)
    return folder


def read(out: Path) -> dict:
    return json.loads((out / "predictions.json").read_text())


def test_every_image_has_its_own_result_and_drawing(photos, tmp_path):
    out, model = tmp_path / "out", Brightness()
    outcome = predict_files([photos], lambda: model, out, batch_size=3, source={"model": "b"})
    assert (outcome.total, outcome.exit_code, model.batches) == (7, 0, [3, 3, 1])
    found = read(out)
    assert (len(found["images"]), found["task"], found["model"], found["failed"]) == (7, "classification", "b", [])
    assert len({entry["drawing"] for entry in found["images"]}) == 7
    for entry in found["images"]:
        with Image.open(entry["image"]) as image:
            expected = np.asarray(image.convert("RGB")).mean() / 255
            assert (entry["width"], entry["height"]) == image.size
        assert entry["predictions"] == [{"class": "bright", "index": 0, "score": pytest.approx(expected, abs=1e-6)}]
        assert Image.open(out / entry["drawing"]).format == ("JPEG" if entry["drawing"].endswith(".jpg") else "PNG")
    assert {"x/a.png", "y/z/a.png", "c.gif.png", "y/d.bmp.png", "b.jpg"} <= {e["drawing"] for e in found["images"]}


class Wide(Brightness):
    """Refuses a batch with an image of fewer than 22 columns."""

    def __call__(self, images: Sequence[Image.Image]) -> list[Result]:
        if any(image.width < 22 for image in images):
            raise ValueError("The image is too small.")
        return super().__call__(images)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_goes_on_past_unreadable_files_and_images_that_the_model_refuses(photos, tmp_path, batch_size):
    (photos / "b.jpg").write_bytes(b"no image")
    (photos / "y/a.png").unlink()
    # Reading it would block.
    os.mkfifo(photos / "y/a.png")
    lines = []
    outcome = predict_files([photos], Wide, tmp_path / "out", batch_size=batch_size, say=lines.append)
    found = read(tmp_path / "out")
    assert outcome.exit_code == 0
    assert len(found["images"]) == 4
    assert [Path(entry["image"]) for entry in found["failed"]] == [
        photos / name for name in ("a.png", "b.jpg", "y/a.png")
    ]
    assert str(outcome).startswith("4 of 7 images predicted.\n")
    assert len(lines) == 7
    assert lines[0] == f"{photos / 'a.png'}: failed, the model raised ValueError: The image is too small"
    assert f"{photos / 'b.jpg'}: failed, not an image of a known format" in lines[1]
    assert lines[2] == f"{photos / 'c.gif'}: bright 23.5 %"


@pytest.mark.parametrize(("error", "expected"), [(KeyboardInterrupt, None), (torch.cuda.OutOfMemoryError, "2 images")])
def test_results_survive_an_interruption_and_an_error(photos, tmp_path, error, expected):
    def stop() -> None:
        raise error

    def run() -> Outcome:
        return predict_files([photos], lambda: Brightness(4, stop), tmp_path / "out", batch_size=2)

    if expected:
        with pytest.raises(ValueError, match=expected):
            run()
    else:
        outcome = run()
        assert outcome.exit_code == 130
        assert str(outcome).startswith("Interrupted: 4 of 7 images predicted.")
    assert len(read(tmp_path / "out")["images"]) == 4


def test_results_are_on_disk_while_the_run_goes_on(photos, tmp_path, monkeypatch):
    """A killed process cannot write."""
    monkeypatch.setattr("soft_vit.predict.predict.WRITE_EVERY", 0)
    seen = []
    model = Brightness(0, lambda: seen.append((tmp_path / "out/predictions.json").exists()))
    predict_files([photos], lambda: model, tmp_path / "out", batch_size=3)
    assert seen == [False, True, True]


class Halves(Brightness):
    """Predicts class 0 for the upper half of the image, 1 for the lower one."""

    def __call__(self, images: Sequence[Image.Image]) -> list[Result]:
        rows = [np.arange(image.height)[:, None].repeat(image.width, 1) >= image.height // 2 for image in images]
        return [ClassMap(row.astype(np.int64), ["up", "down"]) for row in rows]


@pytest.mark.parametrize("draw", [True, False])
def test_map_of_classes_is_a_file(photos, tmp_path, draw):
    lines = []
    predict_files([photos / "b.jpg"], Halves, tmp_path / "out", draw=draw, say=lines.append)
    (entry,) = read(tmp_path / "out")["images"]
    assert entry["map"] == "b.jpg.classes.png"
    assert ("drawing" in entry) == draw
    assert np.asarray(Image.open(tmp_path / "out" / entry["map"])).mean() == 0.5
    assert [part["pixels"] for part in entry["predictions"]] == [21 * 15, 21 * 15]
    assert lines == [f"{photos / 'b.jpg'}: up 50.0 %, down 50.0 %"]


def test_outcome_is_told_with_the_notes_of_the_model(photos, tmp_path, capsys):
    """And a link in the folder of the results is not followed."""
    precious, out = tmp_path / "precious.png", tmp_path / "out"
    precious.write_text("precious")
    out.mkdir()
    (out / "a.png").symlink_to(precious)
    model = Brightness()
    model.notes.append("The head is new.")
    outcome = predict_files([photos / "x/a.png"], lambda: model, out)
    assert str(outcome) == f"Note: The head is new.\n1 of 1 images predicted.\nWritten: {out}"
    # No text by itself.
    assert capsys.readouterr() == ("", "")
    assert precious.read_text() == "precious"
    assert Image.open(out / "a.png").format == "PNG"
