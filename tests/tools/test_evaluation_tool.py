"""tools/test.py: what it prints and writes, and that two processes count each image once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

import soft_vit  # noqa: F401  registers its models with timm
from soft_vit.data import ShapeImages

ROOT = Path(__file__).parents[2]
TINY = ["--cfg-options", "image_size=32", "test_dataloader.dataset.length=7", "test_dataloader.batch_size=2"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "weights.pth"
    torch.save(timm.create_model("soft_pico", num_classes=10, img_size=32).state_dict(), path)
    return str(path)


@pytest.fixture
def work_dir(tmp_path) -> list[str]:
    return ["--work-dir", str(tmp_path / "work")]


def test_prints_and_writes(tool, demo, checkpoint, work_dir, tmp_path, capsys):
    files = {name: tmp_path / name for name in ("out", "per-class", "confusion")}
    options = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    tool("test")([demo, checkpoint, *work_dir, *options, "--tta", *TINY])
    printed = dict(line.split(": ") for line in capsys.readouterr().out.splitlines()[-6:])
    assert list(printed)[:4] == ["accuracy/top1", "accuracy/top5", "cross_entropy", "images"]
    assert printed["images"] == "7"
    assert all(path.is_file() for path in files.values())
    written = json.loads(files["out"].read_text())
    assert printed["accuracy/top1"] == f"{written['accuracy/top1']:.2f}"
    assert written["tta"] is True


def test_timm_name_without_a_config(tool, work_dir, tmp_path, capsys):
    for i in range(3):
        (tmp_path / "images" / str(i)).mkdir(parents=True)
        Image.fromarray(ShapeImages(3, size=32)[i].image).save(tmp_path / "images" / str(i) / "0.png")
    arguments = ["--model", "test_vit", "--no-pretrained", "--data-root", str(tmp_path / "images"), *work_dir]
    workers = ["test_dataloader.num_workers=0", "test_dataloader.persistent_workers=False"]
    tool("test")([*arguments, "--cfg-options", *workers])
    assert "images: 3" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="two processes on gloo need a machine without a GPU")
@pytest.mark.parametrize("views", [[], ["--tta"]])
def test_two_processes_count_every_image_once(demo, checkpoint, tmp_path, views):
    """The second process gets one of the seven images again, to fill its batch."""
    results, tables = [], []
    launch = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=29577"]
    for launcher, option in (([], "none"), (launch, "pytorch")):
        out, table = tmp_path / f"{option}.json", tmp_path / f"{option}.csv"
        command = [sys.executable, *launcher, str(ROOT / "tools" / "test.py"), demo, checkpoint, "--launcher", option]
        command += ["--out", str(out), "--confusion", str(table), "--work-dir", str(tmp_path / "work")]
        subprocess.run([*command, *views, *TINY], check=True, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
        results.append(json.loads(out.read_text()))
        tables.append(table.read_text())
    for name in ("accuracy/top1", "accuracy/top5", "cross_entropy", "images"):
        assert results[0][name] == pytest.approx(results[1][name], rel=1e-6), name
    assert tables[0] == tables[1]
    # MMEngine's collection of results would leave a folder, and read pickles from it.
    assert not (tmp_path / ".dist_test").exists()
