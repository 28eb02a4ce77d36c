"""Options of the training command line: the learning rate, stopping, data."""

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
    # Without workers there is none to persist.
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--auto-scale-lr", *TINY], "without auto_scale_lr.base_batch_size"),
        (["--stop-signals", "SIGKILL", *TINY], "'SIGKILL'"),
        ([*TINY, "model.num_classes=9"], "has 10 classes and the model has 9; set num_classes to 10"),
        ([*TINY, "train_dataloader.batch_size=9", "train_dataloader.drop_last=True"], "has 8 images, and a batch of 9"),
        ([*TINY, "train_dataloader.batch_sampler.type=BatchSampler"], "train_dataloader.batch_sampler is set"),
        ([*TINY, "train_dataloader.num_workers=1", "train_dataloader.dataset.pipeline.0.prob=2"], "prob"),
    ],
)
def test_mistake_ends_in_one_line(mistake, demo, tmp_path, arguments, message):
    assert message in mistake("train", demo, "--work-dir", tmp_path, *arguments)


def test_full_disk_anywhere(tool, demo, tmp_path, monkeypatch):
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mmengine.visualization.LocalVisBackend.add_scalars", fail)
    with pytest.raises(SystemExit, match=r"error: .*No space left on device"):
        tool("train")([demo, "--work-dir", str(tmp_path), *TINY])


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ("soft_tiny.py", ["data_root=nowhere"], "no folder nowhere"),
        ("soft_tiny.py", [], "data_root is not set"),
        ("detection/retinanet_soft_norm_tiny_fpn_1x_coco.py", ["data_root=nowhere"], "no folder nowhere"),
        ("segmentation/upernet_soft_norm_small_512_ade20k.py", ["data_root=nowhere"], "no folder nowhere"),
    ],
)
def test_missing_data_end_before_anything_is_written(mistake, tmp_path, config, options, message):
    path = Path(__file__).parents[2] / "configs" / config
    assert message in mistake("train", path, "--work-dir", tmp_path / "run", *(options and ["--cfg-options", *options]))
    assert not (tmp_path / "run").exists()
