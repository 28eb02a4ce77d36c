"""What is made ready for a run from its config, and what the run says at its end."""

from pathlib import Path

import pytest
from mmengine.config import Config

from soft_vit.engine.errors import UserError
from soft_vit.engine.prepare import prepare
from soft_vit.engine.run import TrainResult, use_amp

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "configs" / "demo" / "soft_pico_shapes.py"


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({}, "ExactEpochLoop"),
        ({"train_cfg": {"_delete_": True, "by_epoch": False, "max_iters": 5}}, "ExactIterLoop"),
        ({"train_cfg": {"_delete_": True, "type": "EpochBasedTrainLoop", "max_epochs": 5}}, "EpochBasedTrainLoop"),
    ],
)
def test_which_loop(given, chosen):
    cfg = prepare(DEMO, options=given)
    assert cfg.train_cfg.type == chosen
    assert "by_epoch" not in cfg.train_cfg


def test_workers_are_shielded_where_there_are_any():
    cfg = prepare(DEMO, options={"train_dataloader.num_workers": 2})
    assert cfg.train_dataloader.worker_init_fn.type == "shield_worker"
    assert "worker_init_fn" not in cfg.val_dataloader


@pytest.mark.parametrize(
    ("metrics", "images", "sentence"),
    [
        ({"accuracy/top1": 50.0}, 4, "Final top-1 accuracy: 50.00 % on 4 held-out images."),
        ({"mIoU": 0.5}, 4, "Final metrics on 4 held-out images: mIoU 0.5000."),
        ({}, 4, "Training ended; the last validation, on 4 held-out images, gave no metrics."),
        ({}, 0, "Training ended without validation."),
    ],
)
def test_last_sentence(metrics, images, sentence):
    assert str(TrainResult(metrics, images, None, Path())) == sentence


@pytest.mark.parametrize(
    ("own", "switched"),
    [
        ({}, {"dtype": "bfloat16"}),
        ({"type": "OptimWrapper", "dtype": "float32"}, {"dtype": "bfloat16"}),
        ({"type": "AmpOptimWrapper", "loss_scale": 8.0}, {"dtype": "bfloat16"}),
        ({"type": "mmengine.optim.AmpOptimWrapper", "dtype": "float16"}, {"dtype": "float16"}),
        ({"dtype": "float16", "loss_scale": 8.0}, {"dtype": "float16", "loss_scale": 8.0}),
    ],
)
def test_amp_keeps_float16(own, switched):
    config = Config({"optim_wrapper": own})
    use_amp(config)
    assert config.optim_wrapper == {"type": "SafeOptimWrapper", **switched}


def test_bgr_images_under_rgb_means_are_refused():
    options = {"train_dataloader.dataset.pipeline": [{"type": "mmpretrain.LoadImageFromFile"}, {"type": "PackInputs"}]}
    with pytest.raises(UserError, match=r"train_dataloader\.dataset\.pipeline\.0 loads BGR images"):
        prepare(DEMO.parents[1] / "soft_tiny.py", options=options)
    prepare(DEMO, options=options)
