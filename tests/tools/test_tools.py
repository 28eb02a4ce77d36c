"""Command lines in this process."""

import csv
import errno
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import timm
import torch
from engine.runs import scalars, weights
from PIL import Image

from soft_vit.data import CLASSES, ShapeImages
from soft_vit.data.images import decode_image
from soft_vit.predict import predict
from soft_vit.probe.health import measure_health
from soft_vit.weights.files import RESOURCES
from soft_vit.weights.spec import NOTES_KEY

# Tools of tools/analysis/ on images and weights in files; tests/test_pages.py runs what pages show.


def test_a_file_of_another_model_is_refused(tool, tmp_path):
    """Also where all parameters have the same names and shapes."""
    content = {"state_dict": timm.create_model("hydra_pyramid_pico", img_size=64).state_dict()}
    torch.save({**content, "meta": {NOTES_KEY: {"model": "hydra_pyramid_pico"}}}, tmp_path / "hydra.pth")
    for name in ("attention_health", "attention_spectrum"):
        with pytest.raises(SystemExit, match="must be hydra_pyramid_pico"):
            tool(name)(["--model", "linear_pyramid_pico", "--checkpoint", str(tmp_path / "hydra.pth")])


def test_attention_health_on_images_of_a_folder(tool, tmp_path, capsys, monkeypatch):
    for number, sample in enumerate(ShapeImages(20, "val")):
        (tmp_path / CLASSES[sample.label]).mkdir(exist_ok=True)
        Image.fromarray(sample.image).save(tmp_path / CLASSES[sample.label] / f"{number}.png")
    (tmp_path / "triangle" / "wrong.png").write_bytes(next((tmp_path / "circle").iterdir()).read_bytes())
    data, few = str(tmp_path), ["--num-images", "50", "--num-matrices", "4"]
    monkeypatch.setattr("soft_vit.probe.health.measure_health", spy := Mock(side_effect=measure_health))
    tool("attention_health")(["--model", "soft_pico", "--data", data, *few])
    model, images = spy.call_args.args
    # Two are of each class.
    assert len(set(model.eval()(torch.stack(images)).argmax(1).tolist())) > 2
    top1 = re.search(r"\d \|\n\nTop-1 ([\d.]+) %, .* on 21 images", capsys.readouterr().out)
    assert 90 < float(top1[1]) < 100, "98 % on all generated images"
    # The shapes have other labels than this model of ten classes.
    tool("attention_health")(["--model", "soft_plus_pico.fashion", *few])
    assert "Top-1" not in capsys.readouterr().out
    # Weights without names of classes have as many as there are folders.
    torch.save(timm.create_model("soft_pico", num_classes=7, img_size=64).state_dict(), tmp_path / "seven.pth")
    with pytest.raises(SystemExit, match="7 classes"):
        tool("attention_health")(["--model", "soft_pico", "--checkpoint", f"{data}/seven.pth", "--data", data, *few])
    with pytest.raises(SystemExit, match="1000 classes"):
        tool("attention_health")(["--model", "soft_tiny", "--no-pretrained", "--data", data, *few])


# A convolutional model takes no img_size.
@pytest.mark.parametrize("arguments", ["test_resnet", f"--config {RESOURCES}/configs/demo/soft_pico_shapes.py"])
@pytest.mark.parametrize("size", ["64x96", None])
def test_get_flops(arguments, size, tool, capsys):
    tool("get_flops")([*arguments.split(), *(["--img-size", size] if size else []), "--depth", "1"])
    shown = size or ("160x160" if arguments == "test_resnet" else "64x64")
    pattern = rf"(test_resnet|soft_pico), {shown.replace('x', ' x ')}, torch (.|\n)*(layer1|stages \| 1.12)"
    assert re.match(pattern, capsys.readouterr().out)


def test_spectrum_of_generated_shapes(tool, tmp_path, monkeypatch):
    """Published weights are the default. As a file, they get shapes normalised as in their training."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    tables = []
    file = str(RESOURCES / "checkpoints" / "soft_plus_pico.fashion.safetensors")
    for given in (["soft_plus_pico.fashion"], ["soft_plus_pico", "--checkpoint", file]):
        with pytest.raises(SystemExit, match=r"pip install 'soft_vit\[analysis\]'"):
            tool("attention_spectrum")(["--shapes", "1", "--out", f"{tmp_path}/new/soft.v1", "--model", *given])
        tables.append(list(csv.DictReader((tmp_path / "new" / "soft.v1.csv").open())))
    # Written with six digits.
    np.testing.assert_allclose(*([float(row["cumulative"]) for row in table] for table in tables), atol=2e-6)


# tools/test.py: what it prints and writes, and that two processes count each image once.


ROOT = Path(__file__).parents[2]
TINY = ["--cfg-options", "image_size=32", "test_dataloader.dataset.length=7", "test_dataloader.batch_size=2"]


def test_timm_name_without_a_config(tool, tmp_path, capsys):
    for i in range(3):
        (tmp_path / "data-root" / str(i)).mkdir(parents=True)
        Image.fromarray(ShapeImages(3, size=32)[i].image).save(tmp_path / "data-root" / str(i) / "0.png")
    files = {name: tmp_path / name for name in ("data-root", "work-dir", "out", "per-class", "confusion")}
    options = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    workers = ["test_dataloader.num_workers=0", "test_dataloader.persistent_workers=False"]
    tool("test")(["--model", "test_vit", "--no-pretrained", "--tta", *options, "--cfg-options", *workers])
    printed = dict(line.split(": ") for line in capsys.readouterr().out.splitlines()[-5:])
    assert printed.keys() == {"accuracy/top1", "accuracy/top5", "cross_entropy", "images", "images_per_second"}
    assert printed["images"] == "3"
    written = json.loads(files["out"].read_text())
    assert printed["accuracy/top1"] == f"{written['accuracy/top1']:.2f}"
    assert written["tta"] is True
    assert all(path.exists() for path in files.values())


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="two processes on gloo need a machine without a GPU")
@pytest.mark.parametrize("views", [[], ["--tta"]])
def test_two_processes_count_every_image_once(demo, tmp_path, views):
    """The second process gets one of the seven images again, to fill its batch."""
    torch.save(timm.create_model("soft_pico", num_classes=10, img_size=32).state_dict(), tmp_path / "weights.pth")
    results, tables = [], []
    launch = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=29577"]
    for launcher, option in (([], "none"), (launch, "pytorch")):
        out, table = tmp_path / f"{option}.json", tmp_path / f"{option}.csv"
        command = [sys.executable, *launcher, str(ROOT / "tools" / "test.py"), demo, "weights.pth", *views]
        command += ["--launcher", option, "--out", str(out), "--confusion", str(table), "--work-dir", "work", *TINY]
        subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
        results.append(json.loads(out.read_text()))
        tables.append(table.read_text())
    for name in ("accuracy/top1", "accuracy/top5", "cross_entropy", "images"):
        assert results[0][name] == pytest.approx(results[1][name], rel=1e-6), name
    assert tables[0] == tables[1]
    # MMEngine's collection of results would leave a folder, and read pickles from it.
    assert not (tmp_path / ".dist_test").exists()


# tools/predict.py: what it prints and writes, and its exit codes; tests/predict/ holds the rest.


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

    def decode_and_stop(data: bytes, *args, **options) -> Image.Image:
        if decoded:
            os.kill(os.getpid(), signal.SIGTERM)
        decoded.append(decode_image(data, *args, **options))
        return decoded[-1]

    monkeypatch.setattr(predict, "decode_image", decode_and_stop)
    try:
        assert exit_code("photos", "--batch-size", "1") == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(json.loads(Path("predictions/predictions.json").read_text())["images"]) == 1


# tools/train.py and tools/test.py: train, resume, and measure the same accuracy again.


SHORT = shlex.split("""--cfg-options train_dataloader.dataset.length=8 image_size=32 train_dataloader.batch_size=4
    val_dataloader.dataset.length=20 test_dataloader.dataset.length=20 default_hooks.logger.interval=1""")


def test_train_then_resume_then_test(tool, demo, tmp_path, capsys):
    tool("train")([demo, "--work-dir", str(tmp_path), "--amp", *SHORT, "train_cfg.max_epochs=2"])
    assert {path.name for path in tmp_path.iterdir()} >= {"epoch_1.pth", "last_checkpoint", "soft_pico_shapes.py"}
    assert list(tmp_path.glob("*/vis_data/events.out.tfevents*"))
    text = next(tmp_path.glob("*/*.log")).read_text()
    assert all(word in text for word in ("eta: ", "loss: ", "train_acc: "))

    tool("train")([demo, "--work-dir", str(tmp_path), "--resume", *SHORT, "train_cfg.max_epochs=3"])
    printed = capsys.readouterr().out
    log = scalars(tmp_path)
    assert [entry["step"] for entry in log if "loss" in entry] == [1, 2, 3, 4, 5, 6]
    validated = [(entry["step"], entry["accuracy/top1"]) for entry in log if "accuracy/top1" in entry]
    assert [epoch for epoch, _ in validated] == [1, 2, 2, 3]
    top1 = validated[-1][1]
    assert f"Final top-1 accuracy: {top1:.2f} % on 20 held-out images" in printed
    assert printed.strip().endswith("epoch_3.pth")
    # max_keep_ckpts is 2, and timm loads the weights as they are.
    assert sorted(path.name for path in tmp_path.glob("epoch_*.pth")) == ["epoch_2.pth", "epoch_3.pth"]
    timm.create_model("soft_pico", num_classes=10, img_size=32).load_state_dict(weights(tmp_path / "epoch_3.pth"))

    out = tmp_path / "metrics.json"
    tool("test")([demo, str(tmp_path / "epoch_3.pth"), "--work-dir", str(tmp_path / "test"), "--out", str(out), *SHORT])
    assert f"accuracy/top1: {top1:.2f}" in capsys.readouterr().out
    assert json.loads(out.read_text())["accuracy/top1"] == pytest.approx(top1)


def test_rate_of_another_batch_without_validation_on_a_full_disk(tool, demo, tmp_path, capsys, monkeypatch):
    scaled = ["--auto-scale-lr", *SHORT, "train_cfg.max_epochs=1", "auto_scale_lr.base_batch_size=16"]
    tool("train")([demo, "--work-dir", str(tmp_path / "scaled"), "--no-validate", "--resume", *scaled])
    printed = capsys.readouterr().out
    assert "starts from the beginning" in printed
    assert "Training ended without validation" in printed
    assert "The learning rate is 0.00025 for steps of 4 images" in printed

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mmengine.visualization.LocalVisBackend.add_scalars", fail)
    with pytest.raises(SystemExit, match=r"error: .*No space left on device"):
        tool("train")([demo, "--work-dir", str(tmp_path), *SHORT])


# A mistake ends each tool in one line that names it, before anything is written.


EXPORT = "--model soft_pico --no-pretrained --format torch_export --out model.pt2"
PUBLISH = "out --tag mine --licence mit"
SHAPES, OF_TINY = "{configs}/demo/soft_pico_shapes.py", "{configs}/soft_tiny.py"

CASES = {
    "app": [("--checkpoint missing.pth", "--model"), ("--model soft_tiny --checkpoint missing.pth", "missing.pth")],
    "attention_health": [("--model soft_pico --data missing", "missing"), ("--model soft_pico.bad", "pretrained()")],
    "attention_spectrum": [("--model soft_norm_pico", "soft_norm_pico"), ("--model soft_pico --out file/o", "o.png")],
    "convert_checkpoint": [("none.pth b.pth --to timm", "none.pth"), ("file file --to timm", "file")],
    "export": [("--format torch_export --out model.pt2", "--checkpoint"), (f"{EXPORT} --features 4", "from 0 to 3")],
    "get_flops": [("", "required"), ("xcit_nano_12_p16_224 --img-size 20", "20 x 20"), ("soft_pica", "soft_pico")],
    "linearise": [
        ("--teacher resnet18 --kind linear --images . --out file/a", "file"),
        ("--teacher nowhere --kind linear --images . --out .", "nowhere"),
        ("--teacher file --kind linear --images . --out .", "file"),
        ("--teacher test_vit --kind linear --images . --out . --steps 1 2", "[1, 2]"),
    ],
    "make_shapes": [(". --task ade", "empty folder")],
    "plot_logs": [("nowhere", "nowhere"), ("file --out .", "folder")],
    "predict": [
        ("*.gif --model test_vit", "*.gif"),
        ("photo.png --model test_vit --out photo.png", "photo.png"),
        ("photo.png --model test_vit --batch-size -1", "got -1"),
    ],
    "publish_checkpoint": [(f"none.pth {PUBLISH}", "none.pth"), (f"file {PUBLISH} --metric x", "NAME=VALUE")],
    "studies gym": [("--tasks mirror recall --num-tokens 16 25", "got 25"), ("--no-train --out file/gym", "file/gym")],
    "studies linearise": [("--kinds sofd", "sofd"), ("--no-train --out file/study", "file cannot be used")],
    "studies softmax": [("soft_pico --out file/softmax.md", "softmax.md")],
    "test": [("none.pth", "none.pth"), ("", "CHECKPOINT and --model NAME"), (OF_TINY, "the config")],
    "train": [
        ("none.py", "none.py"),
        (OF_TINY, "data_root"),
        ("{configs}/detection/retinanet_soft_pico_shapes.py --cfg-options data_root=nowhere", "nowhere"),
        (f"{SHAPES} --stop-signals SIGKILL", "SIGKILL"),
        (f"{SHAPES} --resume none.pth", "none.pth"),
        (f"{SHAPES} --cfg-options train_cfgs.max_epochs=3", "train_cfgs.max_epochs"),
    ],
    "visualize_attention": [
        ("file --model soft_pico", "file cannot be read"),
        ("photo.png --model soft_pico --stage 5", "got 5"),
        ("photo.png --model mlla_tiny.leaplab_in1k --no-pretrained", "got mlla_tiny.leaplab_in1k"),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_mistake_ends_in_one_line(name, mistake, demo, photo, tmp_path):
    (tmp_path / "file").write_text("")
    before = set(tmp_path.rglob("*"))
    for arguments, message in CASES[name]:
        given = shlex.split(arguments.format(configs=demo.removesuffix("/demo/soft_pico_shapes.py")))
        assert message in mistake(name, *given), given
    assert set(tmp_path.rglob("*")) == before
