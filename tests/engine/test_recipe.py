"""The ImageNet configs hold the published recipe: figures worked out by hand from the papers, not from the configs.

SOFT (arXiv 2110.11945) and its normalised form (arXiv 2207.03341): AdamW, 300 epochs of batches of 1024 over 1,281,167
images, learning rate 1e-3 after a warm-up of 10 epochs, half a cosine to 5e-5, weight decay 0.05, clipping at 1, EMA
with decay 0.99996.
"""

import logging
import math
import warnings
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import timm
import torch
from engine.runs import CONFIGS, leaves, on_images, resolved
from evaluated import write_tree
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.runner import BaseLoop, Runner

from soft_vit.engine import train

# Of the schedules below: fewer, because they only know epochs.
STEPS = 31
EPOCHS = 300
WARM_UP = 10 * STEPS
TOTAL = EPOCHS * STEPS


@pytest.fixture(scope="module")
def config() -> Config:
    return resolved(CONFIGS / "soft_tiny.py")


# Learning rate of a step by its number: the ends, the middle of the warm-up, whose last step has the peak, and the
# cosine after a fifth and a half of its length.
PUBLISHED = {
    0: 1e-6,
    WARM_UP // 2: 1e-6 + 999e-6 * (WARM_UP // 2) / (WARM_UP - 1),
    WARM_UP - 1: 1e-3,
    WARM_UP: 1e-3,
    WARM_UP + (TOTAL - WARM_UP) // 5: 5e-5 + 950e-6 * (1 + math.cos(math.pi / 5)) / 2,
    155 * STEPS: 525e-6,
    TOTAL - 1: 5e-5,
}


def test_learning_rate(config):
    """At the chosen steps, by the schedulers that a Runner makes."""
    wrapper = OptimWrapper(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], config.optim_wrapper.optimizer.lr))
    runner = SimpleNamespace(
        train_dataloader=range(STEPS), _train_loop=Mock(BaseLoop), max_epochs=EPOCHS, logger=logging
    )
    schedulers, seen = Runner._build_param_scheduler(runner, config.param_scheduler, wrapper), {}
    with warnings.catch_warnings():
        # Of steps of the schedule without any of the optimizer.
        warnings.simplefilter("ignore")
        for step in range(TOTAL):
            seen[step] = wrapper.param_groups[0]["lr"]
            for scheduler in schedulers:
                scheduler.step()
    assert {step: seen[step] for step in PUBLISHED} == pytest.approx(PUBLISHED, rel=1e-6)


def test_figures(config):
    optim = config.optim_wrapper
    assert optim.optimizer == {"type": "AdamW", "lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.05}
    assert (optim.type, optim.constructor) == ("SafeOptimWrapper", "TimmOptimWrapperConstructor")
    assert optim.clip_grad == {"max_norm": 1.0}
    (average,) = config.custom_hooks
    assert average.momentum == pytest.approx(1 - 0.99996)
    # 1251 steps an epoch: 8 processes of 128, the incomplete batch left out.
    loader = config.train_dataloader
    assert (config.train_cfg.max_epochs, loader.batch_size, loader.drop_last) == (EPOCHS, 1024 // 8, True)


# name: learning rate and batch of each of 8 processes.
SIZES = {
    "tiny": (1e-3, 128),
    "small": (1e-3, 128),
    "base": None,
    "medium": (3.5e-4, 32),
    "large": (3.3e-4, 32),
    "huge": (2.7e-4, 32),
}
RATES = {f"soft_{size}": figures for size, figures in SIZES.items()}
RATES |= {f"soft_{form}_{size}": figures for form in ("norm", "plus") for size, figures in SIZES.items()}
RATES["soft_norm_medium"] = (4e-4, 32)


BASELINES = sorted(path.stem for path in (CONFIGS / "baselines").glob("*.py"))


@pytest.mark.parametrize("name", [*RATES, *BASELINES])
def test_config_of_each_model(config, name):
    given = resolved(CONFIGS / ("baselines" if name in BASELINES else "") / f"{name}.py")
    assert given.model.model_name == name
    assert timm.is_model(name)
    ours, theirs = leaves(given.to_dict()), leaves(config.to_dict())
    differing = {key for key, value in ours.items() if theirs.get(key) != value}
    allowed = {"model_name", "work_dir"}
    if name in RATES:
        rate, batch = given.optim_wrapper.optimizer.lr, given.train_dataloader.batch_size
        # The paper trains no `base`.
        assert (rate, batch) == (RATES[name] or (rate, batch))
        assert given.auto_scale_lr.base_batch_size == 8 * batch
        allowed |= {"lr", "batch_size", "base_batch_size"}
    assert ours.keys() == theirs.keys()
    assert {key.rpartition(".")[2] for key in differing} <= allowed


@pytest.mark.slow
def test_fine_tuning_learns_from_few_images(tmp_path):
    """Three easy classes of 60 images, 3 epochs: 96 to 100 % were measured, and 33 % is chance."""
    data = write_tree(tmp_path / "data", "abc", train=60, val=40)
    options = on_images(data, batch=16, size=64, epochs=3) | {"load_from": "timm://soft_pico"}
    result = train(CONFIGS / "finetune" / "soft_tiny_imagefolder.py", work_dir=tmp_path / "run", options=options)
    assert result.top1 > 90
