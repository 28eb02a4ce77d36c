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

from soft_vit.data import ShapeImages

ROOT = Path(__file__).parents[2]
TINY = ["--cfg-options", "image_size=32", "test_dataloader.dataset.length=7", "test_dataloader.batch_size=2"]


def test_timm_name_without_a_config(tool, tmp_path, capsys):
    for i in range(3):
        (tmp_path / "images" / str(i)).mkdir(parents=True)
        Image.fromarray(ShapeImages(3, size=32)[i].image).save(tmp_path / "images" / str(i) / "0.png")
    files = {name: tmp_path / name for name in ("data-root", "work-dir", "out", "per-class", "confusion")}
    files["data-root"] = tmp_path / "images"
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
