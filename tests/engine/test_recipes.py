"""The recipes of this package and of the zoo: published rules, and runs that resume exactly."""

import logging
import math
import warnings
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import timm
import torch
from engine.runs import CONFIGS, assert_resumes, leaves, on_images, resolved, scalars
from evaluated import write_tree
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.runner import BaseLoop, Runner
from models.zoo.families import FAMILIES

from soft_vit.engine import train
from soft_vit.models import FAMILY_MODELS

# The ImageNet configs hold the published recipe: figures worked out by hand from the papers, not from the configs.


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
    run = SimpleNamespace(train_dataloader=range(STEPS), _train_loop=Mock(BaseLoop), max_epochs=EPOCHS, logger=logging)
    schedulers, seen = Runner._build_param_scheduler(run, config.param_scheduler, wrapper), {}
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
    assert result.metrics["accuracy/top1"] > 90


# The recipes of the zoo: learning rate, average and names follow from the published rules, and runs resume exactly.


# Learning rates that do not follow the rule, at a batch of 512; the rest of their schedules is given in numbers too.
OWN_RATES = {f"care_s{i}": 2.5e-3 * 512 / 1536 for i in range(3)}
OWN_RATES |= dict.fromkeys(("vig_tiny", "vig_base"), 1e-3) | {"vig_h_tiny": 8e-4}
OWN_RATES |= dict.fromkeys(("vig_small", "vig_h_small", "vig_h_base"), 5e-4)
RECIPES = sorted((CONFIGS / "zoo").glob("*.py"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe(path):
    config = resolved(path)
    assert config.model.model_name == path.stem in FAMILY_MODELS
    batch = 8 * config.train_dataloader.batch_size
    assert config.auto_scale_lr.base_batch_size == batch
    # Models at 384 go on from those at 224.
    low = path.stem in ("vssd_small", "vssd_base")
    rate = OWN_RATES.get(path.stem, 3e-4 if low else 5e-4)
    lr = 2e-5 if path.stem.endswith("_384") else rate * batch / 512
    assert config.optim_wrapper.optimizer.lr == pytest.approx(lr)
    of_ravlt, of_pvt = path.stem.startswith(("ravlt", "mavit")), "_pvt_" in path.stem
    warm_up, cosine = config.param_scheduler
    of_vil = path.stem.startswith("vil")
    short = of_ravlt or of_pvt or of_vil or path.stem.endswith("_384")
    own = path.stem in OWN_RATES
    first = 1e-6 / lr if own else 2e-3 if of_pvt else 5 / 3 * 1e-3 if low else 1e-3
    assert (warm_up.end, warm_up.start_factor) == (5 if short else 20, pytest.approx(first))
    lowest = cosine.eta_min if of_ravlt or own or of_vil else cosine.eta_min_ratio * lr
    share = 0.02 if of_pvt else 0.01
    expected = 1e-5 if own else 1e-6 if of_vil else 1e-5 * batch / 1024 if of_ravlt else share * lr
    assert lowest == pytest.approx(expected)
    decay = 0.99996 ** (batch / 512) if of_ravlt else 0.9999 if own else 0.9996 ** (batch / 4096)
    sizes = {config.model.img_size, *(step.img_size for step in config.test_dataloader.dataset.pipeline[1:-1])}
    # Version 2 of ViL learns from smaller images than it is tested on.
    assert sizes == {192 if path.stem.startswith("vil2") else timm.get_pretrained_cfg(path.stem).input_size[-1]}
    for hook in config.get("custom_hooks", []):
        if hook.type == "EMAEvalHook":
            assert hook.momentum == pytest.approx(1 - decay, rel=1e-3)


def test_a_demo_for_every_family_of_classifiers():
    shown = {resolved(path).model.model_name for path in (CONFIGS / "demo" / "zoo").glob("*.py")}
    classifiers = [name for name in FAMILY_MODELS if not name.startswith("efficientvit_")]
    demos, families = ({timm.model_entrypoint(name).__module__ for name in names} for names in (shown, classifiers))
    assert demos == families


# With and without MESA, repeated augmentation, and BatchNorm.
TRAINED = ["mila", *(pytest.param(family, marks=pytest.mark.slow) for family in ("h_vit3", "inline_pvt", "ravlt"))]


@pytest.mark.parametrize("family", TRAINED)
def test_a_recipe_resumes_exactly(family, tree, tmp_path):
    """Two epochs of two steps, of which the last three have the average's term; stopped within the second epoch."""
    row = FAMILIES[family]
    recipe = CONFIGS / "zoo" / f"{row.tiny}.py"
    options = on_images(tree, batch=8, size=32, epochs=2) | {
        "num_classes": 3,
        **{f"model.{name}": value for name, value in (row.small | {"model_name": row.tiny}).items()},
        "default_hooks.checkpoint.by_epoch": False,
        "default_hooks.watch": None,
    }
    hooks = {hook["type"] for hook in resolved(recipe).get("custom_hooks", [])}
    kept = ["state_dict", *["ema_state_dict"] * ("EMAEvalHook" in hooks)]
    assert_resumes(recipe, tmp_path, options, "iter_3.pth", *kept, validate=False)
    steps = [entry for entry in scalars(tmp_path / "whole") if "loss" in entry]
    assert ["loss_mesa" in entry for entry in steps] == [False] + ["MesaHook" in hooks] * 3
