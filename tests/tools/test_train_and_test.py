"""tools/train.py and tools/test.py: train, resume, and measure the same accuracy again."""

import errno
import json
import shlex

import pytest
import timm
from engine.runs import scalars, weights

TINY = shlex.split("""--cfg-options train_dataloader.dataset.length=8 image_size=32 train_dataloader.batch_size=4
    val_dataloader.dataset.length=20 test_dataloader.dataset.length=20 default_hooks.logger.interval=1""")


def test_train_then_resume_then_test(tool, demo, tmp_path, capsys):
    tool("train")([demo, "--work-dir", str(tmp_path), "--amp", *TINY, "train_cfg.max_epochs=2"])
    assert {path.name for path in tmp_path.iterdir()} >= {"epoch_1.pth", "last_checkpoint", "soft_pico_shapes.py"}
    assert list(tmp_path.glob("*/vis_data/events.out.tfevents*"))
    text = next(tmp_path.glob("*/*.log")).read_text()
    assert all(word in text for word in ("eta: ", "loss: ", "train_acc: "))

    tool("train")([demo, "--work-dir", str(tmp_path), "--resume", *TINY, "train_cfg.max_epochs=3"])
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
    tool("test")([demo, str(tmp_path / "epoch_3.pth"), "--work-dir", str(tmp_path / "test"), "--out", str(out), *TINY])
    assert f"accuracy/top1: {top1:.2f}" in capsys.readouterr().out
    assert json.loads(out.read_text())["accuracy/top1"] == pytest.approx(top1)


def test_rate_of_another_batch_without_validation_on_a_full_disk(tool, demo, tmp_path, capsys, monkeypatch):
    scaled = ["--auto-scale-lr", *TINY, "train_cfg.max_epochs=1", "auto_scale_lr.base_batch_size=16"]
    tool("train")([demo, "--work-dir", str(tmp_path / "scaled"), "--no-validate", "--resume", *scaled])
    printed = capsys.readouterr().out
    assert "starts from the beginning" in printed
    assert "Training ended without validation" in printed
    assert "The learning rate is 0.00025 for steps of 4 images" in printed

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mmengine.visualization.LocalVisBackend.add_scalars", fail)
    with pytest.raises(SystemExit, match=r"error: .*No space left on device"):
        tool("train")([demo, "--work-dir", str(tmp_path), *TINY])
