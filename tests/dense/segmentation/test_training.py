"""A segmentor overfits to eight images, resumes exactly, and is tested from its checkpoint."""

from pathlib import Path

import pytest
import torch

from soft_vit.engine.evaluate import evaluate
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.engine.run import train

CONFIG = Path(__file__).parents[3] / "configs" / "segmentation" / "upernet_soft_pico_shapes.py"
STEPS = 36


def options_for(tree):
    """A narrow decoder on the training images themselves, from random weights."""
    options = {
        "model.backbone.pretrained": False,
        "model.backbone.norm_eval": False,
        "model.decoder.channels": 24,
        "model.auxiliary.channels": 16,
        "model.class_weight": [0.1] + [1.0] * 10,
        "data_root": str(tree),
        "data_preprocessor.windows": None,
        "model.test_cfg.mode": "whole",
        "model.test_cfg.scales": (1.0,),
        "model.test_cfg.flip": False,
        "train_dataloader.batch_size": 4,
        "train_dataloader.dataset.pipeline": [{"type": "SegRandomFlip"}, {"type": "PackSegmentation"}],
        "train_cfg.max_iters": STEPS,
        "train_cfg.val_interval": STEPS,
        "param_scheduler": [{"type": "LinearLR", "start_factor": 0.1, "by_epoch": False, "begin": 0, "end": 5}],
        "optim_wrapper.optimizer.lr": 4e-3,
        "default_hooks.checkpoint.interval": STEPS - 6,
    }
    for name in ("val", "test"):
        options[f"{name}_dataloader.dataset.split"] = "training"
        options[f"{name}_dataloader.dataset.pipeline"] = [{"type": "PackSegmentation"}]
    return options


def test_a_run_learns_resumes_exactly_and_is_tested(tree, tmp_path):
    options = options_for(tree)
    whole = train(CONFIG, work_dir=tmp_path / "whole", options=options)
    # Random weights give one or two classes to all pixels: at most 20 %.
    assert whole.metrics["mIoU"] > 20
    half = tmp_path / "whole" / f"iter_{STEPS - 6}.pth"
    resumed = train(CONFIG, work_dir=tmp_path / "resumed", resume=str(half), options=options)
    assert resumed.metrics == whole.metrics
    ends = [load_checkpoint_file(run.checkpoint)["state_dict"] for run in (whole, resumed)]
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name
    found = evaluate(CONFIG, str(whole.checkpoint), options=options, work_dir=tmp_path / "test")
    assert {name: found[name] for name in ("mIoU", "mAcc", "aAcc")} == pytest.approx(whole.metrics)
