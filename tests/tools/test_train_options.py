"""tools/train.py: the learning rate of another batch, and a full disk."""

import errno
import json
import shlex
from pathlib import Path

import pytest

TINY = shlex.split("""--no-validate --cfg-options train_dataloader.dataset.length=8 image_size=32
    train_dataloader.batch_size=4 model.depths=[1,1,1,1] default_hooks.logger.interval=1 train_cfg.max_epochs=2""")


def rates(work_dir: Path) -> list[float]:
    lines = next(work_dir.glob("*/vis_data/scalars.json")).read_text().splitlines()
    return [entry["lr"] for entry in map(json.loads, lines) if "lr" in entry]


def test_learning_rate_of_another_batch(tool, demo, tmp_path, capsys):
    # persistent_workers is dropped where there are no workers.
    tool("train")([demo, "--work-dir", str(tmp_path / "plain"), *TINY, "train_dataloader.persistent_workers=True"])
    assert "Training ended without validation" in capsys.readouterr().out
    plain = rates(tmp_path / "plain")
    # The whole curve: warm-up, cosine and its floor.
    assert len(plain) == 4
    base = "auto_scale_lr.base_batch_size=16"
    for name, options in (("a", ["--auto-scale-lr", *TINY, base]), ("b", [*TINY, base, "auto_scale_lr.enable=True"])):
        tool("train")([demo, "--work-dir", str(tmp_path / name), *options])
        assert rates(tmp_path / name) == pytest.approx([rate / 4 for rate in plain], rel=1e-6)
        assert capsys.readouterr().out.count("The learning rate is 0.00025 for steps of 4 images") == 1


def test_full_disk_anywhere(tool, demo, tmp_path, monkeypatch):
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mmengine.visualization.LocalVisBackend.add_scalars", fail)
    with pytest.raises(SystemExit, match=r"error: .*No space left on device"):
        tool("train")([demo, "--work-dir", str(tmp_path), *TINY])
