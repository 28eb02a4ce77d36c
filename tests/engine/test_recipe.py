"""The ImageNet configs hold the published recipe: figures worked out by hand from the papers, not from the configs.

SOFT (arXiv 2110.11945) and its normalised form (arXiv 2207.03341): AdamW, 300 epochs of batches of 1024 over 1,281,167
images, learning rate 1e-3 after a warm-up of 10 epochs, half a cosine to 5e-5, weight decay 0.05, clipping at 1, EMA
with decay 0.99996.
"""

import logging
import math
import warnings
from types import SimpleNamespace

import pytest
import timm
import torch
from engine.runs import CONFIGS, leaves, on_images, resolved
from evaluated import write_tree
from mmengine.config import Config
from mmengine.dataset import DefaultSampler
from mmengine.optim import build_optim_wrapper
from mmengine.registry import HOOKS, MODELS, DefaultScope
from mmengine.runner import BaseLoop, Runner

from soft_vit.engine import SafeOptimWrapper, train
from soft_vit.layers.attention import ATTENTIONS
from soft_vit.models import model_name

IMAGES = 1_281_167
# Of the schedules below: fewer, because they only know epochs.
STEPS = 31
EPOCHS = 300
WARM_UP = 10 * STEPS
TOTAL = EPOCHS * STEPS


@pytest.fixture(scope="module")
def config() -> Config:
    return resolved(CONFIGS / "soft_tiny.py")


@pytest.fixture(scope="module")
def model(config) -> torch.nn.Module:
    """Without memory for its weights."""
    with DefaultScope.overwrite_default_scope("mmpretrain"), torch.device("meta"):
        return MODELS.build({**config.model, "data_preprocessor": {"type": "mmpretrain.ClsDataPreprocessor"}})


@pytest.fixture(scope="module")
def optim_wrapper(config, model) -> SafeOptimWrapper:
    with DefaultScope.overwrite_default_scope("mmpretrain"):
        return build_optim_wrapper(model, config.optim_wrapper)


# Steps of the optimizer before the one that has this learning rate.
CHOSEN = (0, 1, WARM_UP // 2, WARM_UP - 1, WARM_UP, WARM_UP + 1, 100 * STEPS, 155 * STEPS, 250 * STEPS, TOTAL - 1)
# Start, peak, the middle of the cosine, and the end to a step of it.
PUBLISHED = {0: 1e-6, WARM_UP: 1e-3, 155 * STEPS: 0.000525, TOTAL - 1: 5e-5}


def learning_rate(step: int) -> float:
    if step < WARM_UP:
        # MMEngine arrives with the last step of the warm-up, not with the first after it.
        return 1e-6 + (1e-3 - 1e-6) * step / (WARM_UP - 1)
    progress = (step - WARM_UP) / (TOTAL - WARM_UP)
    return 5e-5 + (1e-3 - 5e-5) * (1 + math.cos(math.pi * progress)) / 2


class Loop(BaseLoop):
    def __init__(self, runner, dataloader) -> None:
        pass

    def run(self) -> None:
        pass


@pytest.fixture(scope="module")
def learning_rates(config, optim_wrapper) -> dict[int, list[float]]:
    """Of every parameter group at the chosen steps, from the schedulers that a Runner makes."""
    loop = Loop(None, None)
    runner = SimpleNamespace(train_dataloader=range(STEPS), _train_loop=loop, max_epochs=EPOCHS, logger=logging)
    schedulers = Runner._build_param_scheduler(runner, config.param_scheduler, optim_wrapper)
    seen = {}
    with warnings.catch_warnings():
        # Of steps of the schedule without any of the optimizer.
        warnings.simplefilter("ignore")
        for step in range(TOTAL):
            if step in CHOSEN:
                seen[step] = [group["lr"] for group in optim_wrapper.param_groups]
            for scheduler in schedulers:
                scheduler.step()
    return seen


def test_learning_rate(learning_rates):
    for step, groups in learning_rates.items():
        # MMEngine multiplies its way through all steps: each rounds by 2^-53 at most.
        assert groups == pytest.approx([learning_rate(step)] * len(groups), rel=TOTAL * 2**-52), step
    assert {step: learning_rates[step][0] for step in PUBLISHED} == pytest.approx(PUBLISHED, rel=1e-6)


def test_epoch_has_1251_steps(config, monkeypatch):
    """8 processes of 128, the incomplete batch left out."""
    monkeypatch.setattr("mmengine.dataset.sampler.get_dist_info", lambda: (0, 8))
    loader = config.train_dataloader
    sampler = DefaultSampler(range(IMAGES), shuffle=loader.sampler.shuffle)
    batches = torch.utils.data.DataLoader(
        range(IMAGES), batch_size=loader.batch_size, sampler=sampler, drop_last=loader.drop_last
    )
    assert len(batches) == IMAGES // 1024 == 1251
    assert config.train_cfg.max_epochs == EPOCHS


def test_weight_decay(optim_wrapper, model):
    """0.05 on matrices and kernels; none on biases, norms, position embeddings and the class token."""
    decays = {
        id(parameter): group["weight_decay"]
        for group in optim_wrapper.optimizer.param_groups
        for parameter in group["params"]
    }
    exempt = 0
    for name, parameter in model.model.named_parameters():
        free = name.endswith((".bias", "pos_embed", "cls_token")) or "norm" in name
        assert decays.pop(id(parameter)) == (0.0 if free else 0.05), name
        exempt += parameter.numel() * free
    assert not decays
    # Position embeddings 56 * 56 * 64 + 28 * 28 * 128 + 14 * 14 * 320 + (7 * 7 + 1) * 512, the token's 512; the rest
    # are vectors, less than 0.5 % of 13.07 M parameters.
    embeddings = 56 * 56 * 64 + 28 * 28 * 128 + 14 * 14 * 320 + 50 * 512 + 512
    assert 0 < exempt - embeddings < 0.005 * 13.07e6


def test_optimizer_and_clipping(optim_wrapper):
    optimizer = optim_wrapper.optimizer
    assert type(optimizer) is torch.optim.AdamW
    assert (optimizer.defaults["betas"], optimizer.defaults["eps"]) == ((0.9, 0.999), 1e-8)
    assert optim_wrapper.clip_grad_kwargs == {"max_norm": 1.0}
    assert optim_wrapper.dtype is torch.float32


@pytest.mark.parametrize("steps", [1, 2, 3, 100])
def test_average_of_weights(config, steps):
    """A weight that is 0 after the first step and 1 after each other: its average is 1 - 0.99996^(steps - 1)."""
    (options,) = config.custom_hooks
    hook = HOOKS.build(options)
    assert hook.begin_iter == hook.begin_epoch == 0
    weight = torch.nn.Linear(1, 1, bias=False).double()
    average = MODELS.build({**hook.ema_cfg, "model": weight})
    for step in range(steps):
        weight.weight.data.fill_(min(step, 1))
        average.update_parameters(weight)
    # The exponent in logarithms, where 1 - x is exact.
    expected = -math.expm1((steps - 1) * math.log1p(-4e-5))
    assert average.module.weight.item() == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert hook.ema_cfg["momentum"] == pytest.approx(1 - 0.99996)


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


def test_there_is_a_baseline_for_each_other_attention():
    names = {model_name(attention, "tiny") for attention in ATTENTIONS}
    assert names == {*BASELINES, *(name for name in RATES if name in names)}


@pytest.mark.slow
def test_fine_tuning_learns_from_few_images(tmp_path):
    """Three easy classes of 60 images, 3 epochs: 97.5 % were measured, and 33 % is chance."""
    data = write_tree(tmp_path / "data", "abc", train=60, val=40)
    options = on_images(data, batch=16, size=64, epochs=3) | {"load_from": "timm://soft_pico"}
    result = train(CONFIGS / "finetune" / "soft_tiny_imagefolder.py", work_dir=tmp_path / "run", options=options)
    assert result.top1 > 90
