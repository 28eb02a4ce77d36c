"""tools/train.py and tools/test.py: train, resume, and measure the same accuracy again."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch

TINY = shlex.split("""--cfg-options train_dataloader.dataset.length=8 image_size=32 train_dataloader.batch_size=4
    val_dataloader.dataset.length=20 test_dataloader.dataset.length=20 default_hooks.logger.interval=1""")


def scalars(work_dir: Path) -> list[dict]:
    lines = [file.read_text().splitlines() for file in sorted(work_dir.glob("*/vis_data/scalars.json"))]
    return [json.loads(line) for part in lines for line in part]


@pytest.fixture(scope="module")
def trained(tool, demo, tmp_path_factory) -> Path:
    work_dir = tmp_path_factory.mktemp("trained")
    tool("train")([demo, "--work-dir", str(work_dir), "--amp", *TINY, "train_cfg.max_epochs=2"])
    return work_dir


def test_usual_layout(trained):
    assert {path.name for path in trained.iterdir()} >= {
        "epoch_1.pth",
        "epoch_2.pth",
        "last_checkpoint",
        "soft_pico_shapes.py",
    }
    assert list(trained.glob("*/vis_data/events.out.tfevents*"))
    assert list(trained.glob("*/*.log"))
    log = scalars(trained)
    assert [entry["step"] for entry in log if "accuracy/top1" in entry] == [1, 2]
    steps = [entry for entry in log if "loss" in entry]
    assert [entry["step"] for entry in steps] == [1, 2, 3, 4]
    assert all(torch.tensor([entry["loss"], entry["grad_norm"]]).isfinite().all() for entry in steps)
    assert all(0 <= entry["train_acc"] <= 100 for entry in steps)
    text = next(trained.glob("*/*.log")).read_text()
    assert all(word in text for word in ("eta: ", "loss: ", "train_acc: "))


def test_timm_loads_the_weights_as_they_are(trained):
    import timm

    from soft_vit.engine.resume.read import load_checkpoint_file

    state = load_checkpoint_file(trained / "epoch_2.pth")["state_dict"]
    timm.create_model("soft_pico", num_classes=10, img_size=64).load_state_dict(state)


def test_resume_then_test_prints_the_same_accuracy(tool, demo, trained, tmp_path, capsys):
    work_dir, out = tmp_path / "resumed", tmp_path / "metrics.json"
    shutil.copytree(trained, work_dir)
    tool("train")([demo, "--work-dir", str(work_dir), "--resume", *TINY, "train_cfg.max_epochs=3"])
    printed = capsys.readouterr().out
    entries = scalars(work_dir)
    assert [entry["step"] for entry in entries if "loss" in entry] == [1, 2, 3, 4, 5, 6]
    top1 = [entry["accuracy/top1"] for entry in entries if "accuracy/top1" in entry][-1]
    assert f"Final top-1 accuracy: {top1:.2f} % on 20 held-out images" in printed
    assert printed.strip().endswith("epoch_3.pth")
    # max_keep_ckpts is 2.
    assert sorted(path.name for path in work_dir.glob("epoch_*.pth")) == ["epoch_2.pth", "epoch_3.pth"]

    tool("test")([demo, str(work_dir / "epoch_3.pth"), "--work-dir", str(tmp_path / "test"), "--out", str(out), *TINY])
    assert f"accuracy/top1: {top1:.2f}" in capsys.readouterr().out
    assert json.loads(out.read_text())["accuracy/top1"] == pytest.approx(top1)


def test_without_validation(tool, demo, tmp_path, capsys):
    arguments = [demo, "--work-dir", str(tmp_path), "--no-validate", "--resume", *TINY, "train_cfg.max_epochs=1"]
    tool("train")(arguments)
    printed = capsys.readouterr().out
    assert "starts from the beginning" in printed
    assert "Training ended without validation" in printed
    assert not any("accuracy/top1" in entry for entry in scalars(tmp_path))
