"""A run: what it says at its end, and the same by MMEngine's own Runner."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner

from soft_vit.engine import train
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.engine.run import TrainResult

DEMO = Path(__file__).parents[2] / "configs" / "demo" / "soft_pico_shapes.py"


@pytest.mark.parametrize(
    ("metrics", "images", "sentence"),
    [
        ({"accuracy/top1": 50.0}, 4, "Final top-1 accuracy: 50.00 % on 4 held-out images."),
        (
            {"accuracy/top1": 50.0, "ema/accuracy/top1": 75.0},
            4,
            "Final top-1 accuracy: 50.00 %, 75.00 % with averaged weights, on 4 held-out images.",
        ),
        ({"mIoU": 0.5}, 4, "Final metrics on 4 held-out images: mIoU 0.5000."),
        ({}, 0, "Training ended without validation."),
    ],
)
def test_last_sentence(metrics, images, sentence):
    assert str(TrainResult(metrics, images, None, Path())) == sentence


@pytest.mark.parametrize("load_from", [False, True])
def test_mmengines_own_runner_trains_the_same(tmp_path, load_from):
    """Its classes, hooks and schedule all stand in the config; start weights of other classes are fitted as well."""
    options = {
        "model.depths": [1, 1, 1, 1],
        "model.drop_path_rate": 0.2,
        "train_dataloader.dataset.length": 24,
        "train_dataloader.batch_size": 4,
        "val_dataloader.dataset.length": 8,
        "train_cfg.max_epochs": 2,
        "custom_hooks": [{"type": "EMAEvalHook", "momentum": 0.1}],
    }
    if load_from:
        result = train(DEMO, work_dir=tmp_path / "start", options={**options, "num_classes": 12}, validate=False)
        options["load_from"] = str(result.checkpoint)
    ours = train(DEMO, work_dir=tmp_path / "ours", options=options)
    cfg = Config.fromfile(DEMO)
    cfg.merge_from_dict({**options, "work_dir": str(tmp_path / "theirs"), "experiment_name": "theirs"})
    Runner.from_cfg(cfg).train()
    first, second = (load_checkpoint_file(tmp_path / name / "epoch_2.pth") for name in ("ours", "theirs"))
    assert first["meta"]["iter"] == second["meta"]["iter"] == 12
    for part in ("state_dict", "ema_state_dict"):
        assert first[part].keys() == second[part].keys()
        for name, value in first[part].items():
            assert torch.equal(value, second[part][name]), name
    assert ours.top1 is not None
