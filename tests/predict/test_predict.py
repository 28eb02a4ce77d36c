"""Files that are predicted: what is meant, what is written, what is drawn."""

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import torch
from file_server import file_server
from mmengine.structures import BaseDataElement, InstanceData
from mmpretrain.structures import DataSample
from PIL import Image
from pycocotools import mask as coco

from soft_vit.engine.drawing import class_colors, draw_classes, draw_instances, draw_segmentation, index_image
from soft_vit.predict import ClassMap, Outcome, RankedClasses, predict_files, result_of
from soft_vit.predict.inputs import find_inputs, free_name, printable
from soft_vit.predict.results import Result
from soft_vit.probe import cost

# Many images: what is written, also when files are bad or the run is interrupted.


class Brightness:
    """Predicts the brightness of an image; calls `then` after `after` images."""

    by_windows, label_type, upright, bits = False, None, None, None

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


def test_16_bits_are_scaled_by_the_option_or_as_the_predictor_says(photos, tmp_path):
    Image.fromarray(np.full((30, 20), 1024, np.uint16)).save(photos / "a.png")
    for bits, own, expected in ((None, None, []), (12, None, [64]), (None, 12, [64]), (11, 12, [128])):
        predictor = Brightness()
        predictor.bits = own
        outcome = predict_files([photos / "a.png"], lambda one=predictor: one, tmp_path / "out", bits=bits).results
        found = [entry["predictions"][0]["score"] for entry in outcome["images"]]
        assert found == [round(value / 255, 6) for value in expected]
        assert expected or "bits=11" in outcome["failed"][0]["reason"]


@pytest.mark.parametrize("batch_size", [1, 5])
def test_goes_on_past_unreadable_files_and_images_that_the_model_refuses(photos, tmp_path, batch_size):
    (photos / "b.jpg").write_bytes(b"no image")
    (photos / "y/a.png").unlink()
    # Reading it would block.
    os.mkfifo(photos / "y/a.png")
    lines = []
    outcome = predict_files([photos], Wide, tmp_path / "out", batch_size=batch_size, notify=lines.append)
    found = read(tmp_path / "out")
    assert outcome.exit_code == 0
    assert len(found["images"]) == 4
    assert [e["image"] for e in found["failed"]] == [f"{photos}/{name}" for name in ("a.png", "b.jpg", "y/a.png")]
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


class Rows(Brightness):
    """Predicts whether a pixel is bright, seven rows at a time; `then` interrupts it before the row `after`."""

    by_windows, label_type, key, names = True, np.uint8, "rows", ["dark", "bright"]

    def strips(self, image: Image.Image, first: int = 0) -> Iterator[np.ndarray]:
        for row in range(first, image.size[1], 7):
            if self.after is not None and row >= self.after:
                self.then()
            self.batches.append(row)
            strip = image.crop((0, row, image.size[0], min(row + 7, image.size[1])))
            yield (np.asarray(strip)[..., 0] > 127).astype(np.uint8)


def test_a_killed_run_continues_with_the_next_row(tmp_path):
    Image.fromarray(pixels := np.random.default_rng(0).integers(0, 255, (40, 30, 3), np.uint8)).save(tmp_path / "a.png")

    def stop() -> None:
        raise KeyboardInterrupt

    first, other, deep, turned, second = Rows(21, stop), Rows(14, stop), Rows(14, stop), Rows(14, stop), Rows()
    other.key, deep.bits, turned.upright = "other", 12, True
    for model, code in ((first, 130), (other, 130), (deep, 130), (turned, 130), (second, 0)):
        outcome = predict_files([tmp_path / "a.png"], lambda model=model: model, tmp_path / "out", draw=False)
        assert outcome.exit_code == code
        # A part of a row.
        for part in (tmp_path / "out").glob(".*.part"):
            part.write_bytes(part.read_bytes() + b"1")
    assert (first.batches, second.batches) == ([0, 7, 14], [21, 28, 35])
    assert other.batches == deep.batches == turned.batches == [0, 7]
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out/a.png.classes.png")), pixels[..., 0] > 127)


def test_more_pixels_than_pillow_allows_are_read_if_they_fit_into_memory(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 9)
    for free, count in ((2**30, 7), (99, 0)):
        monkeypatch.setattr("soft_vit.predict.predict.free_memory", lambda free=free: free)
        outcome = predict_files([photos], Brightness, tmp_path / str(free), draw=False)
        assert len(outcome.results["images"]) == count
    assert Image.MAX_IMAGE_PIXELS == 9


def test_free_memory_is_that_of_the_groups_of_a_job(tmp_path, monkeypatch):
    """As without a container: the process says in which group it is, and a group around it has the limit."""
    files = {"proc/self/cgroup": "1:cpu:/\n0::/job/step\n", "sys/fs/cgroup/job/step/memory.max": "max\n"}
    files |= {"sys/fs/cgroup/job/memory.max": "5000\n", "sys/fs/cgroup/job/memory.stat": "anon 2000\nfile 1\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cost, "Path", lambda *parts: tmp_path.joinpath(*(part.lstrip("/") for part in parts)))
    assert cost.free_memory() == 3000


class Halves(Brightness):
    """Predicts class 0 for the upper half of the image, 1 for the lower one."""

    def __call__(self, images: Sequence[Image.Image]) -> list[Result]:
        rows = [np.arange(image.height)[:, None].repeat(image.width, 1) >= image.height // 2 for image in images]
        return [ClassMap(row.astype(np.int64), ["up", "down"]) for row in rows]


@pytest.mark.parametrize("draw", [True, False])
def test_map_of_classes_is_a_file(photos, tmp_path, draw):
    lines = []
    predict_files([photos / "b.jpg"], Halves, tmp_path / "out", draw=draw, notify=lines.append)
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


# Which images files and folders mean, and where their results go.


FOUND = ["[x].png", "a.jpg", "b.PNG", "deep/a.jpg", "deep/er/c.webp"]


@pytest.fixture
def tree(tmp_path, monkeypatch) -> None:
    """photos/ with those that are FOUND, text, a hidden image and a link to photos/; out/a.jpg."""
    for name in [*FOUND, ".hidden.png", "notes.txt", "../out/a.jpg"]:
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "photos/deep/up").symlink_to(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)


MEANT = [(["photos/notes.txt"], ["notes.txt"]), (["photos/[x].png"], ["[x].png"])]
MEANT += [(["photos/a.jpg"] * 2 + ["photos", "photos/deep"], FOUND), (["."], [f"photos/{name}" for name in FOUND])]


@pytest.mark.parametrize(("given", "names"), MEANT)
def test_what_is_meant(tree, given, names):
    found = find_inputs(given, Path("out"))
    assert sorted(str(image.name) for image in found) == names
    assert all(image.source.is_file() for image in found)


MISTAKES = [("none.jpg", FileNotFoundError), ("out/a.jpg", ValueError), ("out", ValueError), ("", ValueError)]


@pytest.mark.parametrize(("given", "error"), MISTAKES)
def test_mistakes(tree, given, error):
    with pytest.raises(error):
        find_inputs([given], Path("out"))


ADDRESSES = [("http://localhost/a/b.jpg?size=3#x", "b.jpg"), ("-", "image")]
ADDRESSES += [("https://localhost", "image"), ("https://localhost/a/..", "image")]


@pytest.mark.parametrize(("given", "name"), ADDRESSES)
def test_addresses_and_standard_input(tmp_path, given, name):
    (found,) = find_inputs([given, given], tmp_path)
    assert (found.source, str(found.name)) == (given, name)


def test_downloads(monkeypatch):
    def read(address: str) -> bytes:
        (found,) = find_inputs([address], Path("out"))
        return found.read()

    with file_server(body=b"0123456789") as server:
        assert read(f"{server.url}/image") == b"0123456789"
        server.status = [404]
        for path, reason in (("/none", "404"), ("/a b", "control characters")):
            with pytest.raises(OSError, match=reason):
                read(server.url + path)
        monkeypatch.setattr("soft_vit.predict.inputs.MAX_FILE_BYTES", 9)
        with pytest.raises(ValueError, match="9 bytes"):
            read(f"{server.url}/image")
    with pytest.raises(OSError, match="refused"):
        read(f"{server.url}/image")


def test_names_are_given_once_and_are_text():
    taken = {"predictions.json"}
    given = ["a.jpg", "a.jpg", "A.JPG", "deep/a.jpg", "predictions.json", "a_2.jpg", os.fsdecode(b"d\xfe/\xff.png")]
    names = [free_name(PurePosixPath(name), taken) for name in given]
    assert names == ["a.jpg", "a_2.jpg", "A_3.JPG", "deep/a.jpg", "predictions_2.json", "a_2_2.jpg", "d�/�.png"]
    assert free_name(PurePosixPath("d", "猫" * 100 + ".png"), taken) == f"d/{'猫' * 78}.png"
    assert printable(Path(os.fsdecode(b"a\xff.jpg"))) == "a�.jpg"


# Results from data samples of the three kinds of models: what JSON, a reader and a drawing get.


NAMES = ["circle", "square", "star"]


def detected(scores: list[float], dtype: torch.dtype = torch.float32, **more: torch.Tensor) -> BaseDataElement:
    boxes = torch.arange(4 * len(scores), dtype=dtype).reshape(-1, 4)
    found = InstanceData(bboxes=boxes, scores=torch.tensor(scores, dtype=dtype), labels=torch.arange(len(scores)))
    found.update(InstanceData(**more))
    return BaseDataElement(pred_instances=found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_classes_come_in_the_order_of_their_scores(dtype):
    sample = DataSample().set_pred_score(torch.tensor([0.125, 0.5, 0.0, 0.25], dtype=dtype))
    found = result_of(sample, NAMES, topk=2)
    assert found == RankedClasses([1, 3], ["square", "class 3"], [0.5, 0.25])
    assert found.entries()[1] == {"class": "class 3", "index": 3, "score": 0.25}
    assert len(result_of(sample, NAMES, topk=5).indices) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_instances_above_the_least_score_the_best_first(dtype):
    # 0.3 in float32 and in bfloat16 is above 0.3.
    found = result_of(detected([0.3, 0.875, 0.25, 0.5], dtype), NAMES, score_thr=0.3)
    assert (found.labels, found.names) == ([1, 3, 0], ["square", "class 3", "circle"])
    assert found.entries()[0] == {"class": "square", "label": 1, "score": 0.875, "box": [4.0, 5.0, 6.0, 7.0]}


def test_masks_can_be_read_by_cocos_own_code():
    masks = torch.rand(3, 13, 7) > 0.5
    masks[1] = False
    entries = json.loads(json.dumps(result_of(detected([0.5, 0.9, 0.7], masks=masks), NAMES).entries()))
    for entry, index in zip(entries, [1, 2, 0], strict=True):
        assert entry["mask"]["size"] == [13, 7]
        np.testing.assert_array_equal(coco.decode(entry["mask"]), masks[index].numpy())
    nothing = result_of(detected([0.1] * 3, masks=masks), NAMES)
    assert (nothing.entries(), nothing.masks.shape) == ([], (0, 13, 7))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_boxes_and_scores_are_left_out(value):
    sample = detected([0.5, float("nan"), 0.7])
    sample.pred_instances.bboxes[0, 2] = value
    assert result_of(sample, NAMES).labels == [2]


# Drawings of predictions: what is where, at sizes from one pixel to a panorama.


GREY = 100


def grey(height: int, width: int) -> Image.Image:
    return Image.new("RGB", (width, height), (GREY, GREY, GREY))


def mixed(color: np.ndarray) -> np.ndarray:
    return (color + 1.0 * GREY) / 2


@pytest.mark.parametrize(("label", "ink"), [(3, (30, 30, 30)), (4, (255, 255, 255))])
def test_small_picture_is_enlarged_by_a_whole_factor_with_its_boxes(label, ink):
    """64 pixels become 384: the edges of a box lie at six times its coordinates. Its label is readable."""
    picture, color = grey(64, 64), class_colors(5)[label]
    pixels = np.asarray(draw_instances(picture, np.array([[10, 20, 40, 50]]), [label], ["kite"], [0.5]))
    assert pixels.shape == (384, 384, 3)
    np.testing.assert_array_equal(pixels[180, [60, 240]], [color, color])
    np.testing.assert_array_equal(pixels[240, 150], [GREY] * 3)
    assert {tuple(color.tolist()), ink} <= {tuple(pixel) for pixel in pixels[120:145, 60:140].reshape(-1, 3).tolist()}
    assert picture == grey(64, 64)


def test_smaller_mask_lies_on_a_larger_one_and_both_are_half_transparent():
    masks = np.zeros((2, 400, 400), dtype=bool)
    masks[0, 100:300, 100:300] = masks[1, 150:250, 150:250] = True
    boxes = np.array([[100, 100, 300, 300], [150, 150, 250, 250]])
    pixels = np.asarray(draw_instances(grey(400, 400), boxes, [0, 1], ["out", "in"], [0.9, 0.5], masks))
    expected = [mixed(class_colors(2)[1]), mixed(class_colors(2)[0]), [GREY] * 3]
    np.testing.assert_allclose(pixels[[240, 280, 350], [240, 200, 200]], expected, atol=1)


# None, larger than the picture, a point, turned around, outside.
BOXES = [[], [[-50, -50, 3000, 3000]], [[30, 30, 30, 30]], [[5, 5, 2, 1]], [[6000, 6000, 7000, 7000]]]


@pytest.mark.parametrize("size", [(1, 1), (63, 50), (30, 2000)])
def test_any_box_mask_and_name_on_any_picture(size):
    for boxes in BOXES:
        count = len(boxes)
        given = np.array(boxes, dtype=float).reshape(-1, 4), [0] * count, ["name " * 30] * count, [0.5] * count
        drawn = draw_instances(grey(*size), *given, np.zeros((count, *size), dtype=bool))
        factor = drawn.width // size[1]
        assert drawn.size == (factor * size[1], factor * size[0])
    drawn = draw_classes(grey(*size), ["a name that is longer than the picture " * 5, "b"], [0.7, 0.2])
    assert drawn.height > size[0]
    assert drawn.width >= 280


def test_map_lies_on_the_picture_above_a_legend_of_the_classes_in_it():
    classes = np.zeros((400, 500), dtype=np.int64)
    classes[:, 250:] = 2
    drawn, colors = draw_segmentation(grey(400, 500), classes, ["wall", "sky", "tree"]), class_colors(3)
    np.testing.assert_allclose(np.asarray(drawn)[200, [100, 400]], mixed(colors[[0, 2]]), atol=1)
    below = np.asarray(drawn)[400:]
    assert [bool((below == color).all(-1).any()) for color in colors] == [True, False, True]


@pytest.mark.parametrize("count", [3, 256, 400])
def test_index_image_survives_a_png(count):
    classes = np.arange(63 * 50).reshape(63, 50) % count
    stream = io.BytesIO()
    index_image(classes).save(stream, "PNG")
    read = Image.open(stream)
    np.testing.assert_array_equal(np.asarray(read), classes)
    if count <= 256:
        np.testing.assert_array_equal(np.asarray(read.convert("RGB")), class_colors(256)[classes])
