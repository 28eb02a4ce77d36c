"""What is made ready for a run from its config, and what the run says at its end."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from mmengine.config import Config, ConfigDict

from soft_vit.engine.prepare import prepare
from soft_vit.engine.run import TrainResult, scale_learning_rate, use_amp

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
        (
            {"accuracy/top1": 50.0, "ema/accuracy/top1": 75.0},
            4,
            "Final top-1 accuracy: 50.00 %, 75.00 % with averaged weights, on 4 held-out images.",
        ),
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
    with pytest.raises(ValueError, match=r"train_dataloader\.dataset\.pipeline\.0 loads BGR images"):
        prepare(DEMO.parents[1] / "soft_tiny.py", options=options)
    prepare(DEMO, options=options)


def a_run(processes: int = 1, batch: int | dict = 4, rule: dict | None = None, **wrapper: object) -> SimpleNamespace:
    said = []
    return SimpleNamespace(
        world_size=processes,
        cfg=ConfigDict(train_dataloader=batch if isinstance(batch, dict) else {"batch_size": batch}),
        auto_scale_lr={"enable": True, "base_batch_size": 16} if rule is None else rule,
        optim_wrapper={"optimizer": {"type": "AdamW", "lr": 1e-3}, **wrapper},
        param_schedulers=[
            {"type": "LinearLR", "start_factor": 0.05},
            {"type": "CosineAnnealingLR", "eta_min": 1e-5},
            {"type": "OneCycleLR", "eta_max": 1e-2},
            {"type": "OneCycleLR", "eta_max": [1e-2, 1e-3]},
            {"type": "CosineAnnealingParamScheduler", "param_name": "weight_decay", "eta_min": 0.3},
        ],
        logger=SimpleNamespace(info=said.append),
        said=said,
    )


@pytest.mark.parametrize(
    ("run", "factor", "sentence"),
    [
        (a_run(), 0.25, "is 0.00025: the global batch is 4 (1 processes x 4 images), and the config's 0.001 belongs"),
        (a_run(8, 4), 2, "is 0.002: the global batch is 32 (8 processes x 4 images)"),
        (
            a_run(2, 4, accumulative_counts=6),
            3,
            "is 0.003: the global batch is 48 (2 processes x 4 images x 6 batches)",
        ),
        (a_run(4, 4), 1, "is 0.001: the global batch is 16"),
        (a_run(batch={"batch_size": 4, "batch_sampler": {"type": "BatchSampler", "batch_size": 32}}), 2, "x 32 images"),
        (a_run(rule={}), None, None),
        (a_run(rule={"enable": False, "base_batch_size": 16}), None, None),
    ],
)
def test_lr_and_bounds(run, factor, sentence):
    scale_learning_rate(run)
    factor_or_one = factor or 1
    assert run.optim_wrapper["optimizer"]["lr"] == pytest.approx(1e-3 * factor_or_one, rel=1e-12)
    warm_up, cosine, cycle, cycles, decay = run.param_schedulers
    assert warm_up == {"type": "LinearLR", "start_factor": 0.05}
    assert cosine["eta_min"] == pytest.approx(1e-5 * factor_or_one, rel=1e-12)
    assert cycle["eta_max"] == pytest.approx(1e-2 * factor_or_one, rel=1e-12)
    assert cycles["eta_max"] == pytest.approx([1e-2 * factor_or_one, 1e-3 * factor_or_one], rel=1e-12)
    assert decay["eta_min"] == 0.3
    assert len(run.said) == (factor is not None)
    if factor is not None:
        assert sentence in run.said[0]
        # MMEngine must not scale once more.
        assert run.auto_scale_lr is None


@pytest.mark.parametrize("rule", [{"enable": True}, {"enable": True, "base_batch_size": 0}])
def test_no_base(rule):
    with pytest.raises(ValueError, match=r"without auto_scale_lr\.base_batch_size"):
        scale_learning_rate(a_run(rule=rule))
