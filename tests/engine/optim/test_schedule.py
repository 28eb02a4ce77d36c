"""Learning rates scaled with the batch, and schedules that are too short."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.optim import LinearLR, OneCycleLR

from soft_vit.engine import UserError, train
from soft_vit.engine.optim.schedule import ScheduleEndHook, scale_learning_rate


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
    with pytest.raises(UserError, match=r"without auto_scale_lr\.base_batch_size"):
        scale_learning_rate(a_run(rule=rule))


@pytest.mark.parametrize("by_epoch", [True, False])
@pytest.mark.parametrize(
    ("steps", "span"), [(3, {}), (4, {}), (5, {}), (2, {"begin": 3}), (2, {"end": 3}), (2, {"end": 4}), (1, {"end": 3})]
)
def test_ends_before_the_run(steps, span, by_epoch):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    options = {"total_steps": steps, "eta_max": 1.0, "by_epoch": by_epoch, "end": 5, **span}
    schedulers = [LinearLR(optimizer), OneCycleLR(optimizer, **options)]
    epochs, iterations = (5, math.inf) if by_epoch else (math.inf, 5)
    run = SimpleNamespace(param_schedulers={"network": schedulers}, max_epochs=epochs, max_iters=iterations)
    refused = None
    try:
        ScheduleEndHook().before_train(run)
    except UserError as error:
        refused = error
    trial = OneCycleLR(optimizer, **options)
    try:
        for _ in range(5):
            optimizer.step()
            trial.step()
    except ValueError:
        assert f"OneCycleLR of param_scheduler has {steps} steps" in str(refused)
    else:
        assert refused is None


def test_a_run_with_one_does_not_begin(tmp_path):
    options = {"train_dataloader.dataset.length": 64, "param_scheduler": [{"type": "OneCycleLR", "total_steps": 1}]}
    with pytest.raises(UserError, match="OneCycleLR of param_scheduler has 1 steps, and the run takes 4"):
        train(
            Path(__file__).parents[3] / "configs" / "demo" / "soft_pico_shapes.py", work_dir=tmp_path, options=options
        )
    assert not list(tmp_path.glob("*.pth"))
