"""Optimizers and schedules of timm, and which rate each parameter has."""

import io
import math

import pytest
import timm
import torch
from engine.runs import DEMO, assert_resumes, tiny
from mmengine.model import BaseModel
from mmengine.optim import build_optim_wrapper
from mmengine.registry import OPTIMIZERS, PARAM_SCHEDULERS, DefaultScope
from torch import nn

import soft_vit  # noqa: F401  registers the models
from soft_vit.engine import SafeOptimWrapper

# timm's optimizers and schedules: by name, resumed exactly, and equal to timm's.


CHOSEN = ["timm.lion", "timm.adafactor", "timm.lamb", "timm.muon", "timm.nadamuon"]
# Those of apex and bitsandbytes need a GPU, Kron a compiler.
NAMES = timm.optim.list_optimizers(exclude_filters=["bnb*", "fused*", "kron*", "adahessian"])
QUICK = ["adamw", "adafactor", "lamb", "lion", "muon", "nadamuon", "lookahead_lion"]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 7, 3), nn.Flatten(), nn.Linear(63, 6), nn.LayerNorm(6), nn.Linear(6, 5))


def build(model: nn.Module, name: str, **options) -> torch.optim.Optimizer:
    with DefaultScope.overwrite_default_scope("mmpretrain"):
        return OPTIMIZERS.build({"type": name, "params": model.parameters(), "lr": 0.01, **options})


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> None:
    for seed in seeds:
        optimizer.zero_grad()
        x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in NAMES if n not in QUICK)])
def test_every_optimizer_of_timm_goes_on_exactly(name):
    """From a file that is read without pickle, for 5 steps after 3: Lookahead's sixth is among them."""
    model, other, file = net(), net(), io.BytesIO()
    optimizer = build(model, f"timm.{name}", weight_decay=0.1)
    step(model, optimizer, range(3))
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    step(model, optimizer, range(3, 8))
    weights, state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    resumed = build(other, f"timm.{name}", weight_decay=0.1)
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    step(other, resumed, range(3, 8))
    before, after = net().state_dict(), other.state_dict()
    for key, value in model.state_dict().items():
        assert torch.equal(value, after[key]), key
        assert not torch.equal(value, before[key]), key


@pytest.mark.parametrize("name", ["lamb", "nadamuon", "sgd"])
def test_steps_and_defaults_are_timms(name):
    ours, theirs = net(), net()
    step(ours, build(ours, f"timm.{name}"), range(3))
    step(theirs, timm.optim.create_optimizer_v2(theirs.parameters(), name, lr=0.01), range(3))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_names_of_torch_and_dotted_paths_stay():
    assert OPTIMIZERS.get("AdamW") is torch.optim.AdamW
    assert OPTIMIZERS.get("Muon") is torch.optim.Muon
    assert type(build(net(), "timm.optim.Lion")) is timm.optim.Lion


MISTAKES = [("timm.muonn", {}, "muonn"), ("timm.lion", {"layer_decay": 0.5}, "paramwise_cfg")]


@pytest.mark.parametrize(("name", "options", "named"), MISTAKES)
def test_mistakes(name, options, named):
    with pytest.raises(ValueError, match=named):
        build(net(), name, **options)


# Which parameter is in which group


ADAMW = {"type": "AdamW", "lr": 0.1, "weight_decay": 0.05}


def constructed(model: nn.Module, optimizer: dict = ADAMW, **paramwise_cfg):
    config = {"type": "SafeOptimWrapper", "constructor": "TimmOptimWrapperConstructor", "optimizer": optimizer}
    with DefaultScope.overwrite_default_scope("mmpretrain"):
        return build_optim_wrapper(model, config | ({"paramwise_cfg": paramwise_cfg} if paramwise_cfg else {}))


def settings(model: nn.Module, wrapper, *keys: str) -> dict[str, tuple]:
    """What the group of each trained parameter says, by name: weight decay and learning rate, if no keys are given."""
    names = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups = [(names[id(p)], group) for group in wrapper.optimizer.param_groups for p in group["params"]]
    # Each is in one group.
    assert sorted(name for name, _ in groups) == sorted(names.values())
    return {name: tuple(group.get(key) for key in keys or ("weight_decay", "lr")) for name, group in groups}


def timm_model(name: str) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name, num_classes=10)


@pytest.mark.parametrize("layer_decay", [None, 0.5])
def test_fallback_by_name_and_of_what_has_no_weight_decay(layer_decay):
    model, muon = timm_model("vit_tiny_patch16_224"), {"type": "timm.muon", "lr": 0.1, "weight_decay": 0.05}
    options = dict(layer_decay=layer_decay, fallback_list=["head.*"], fallback_no_weight_decay=True)
    found = settings(model, constructed(model, muon, **options), "use_fallback")
    expected = {"head.weight", "head.bias", "pos_embed", "cls_token"}
    assert {name for name, (fallback,) in found.items() if fallback} == expected
    with pytest.raises(ValueError, match=r"model\.head"):
        constructed(model, muon, fallback_list=["model.head.*"])


MODELS = ["soft_pico", "performer_pyramid_pico", "vit_tiny_patch16_224", "convnext_atto"]


@pytest.mark.parametrize("name", MODELS)
def test_weight_decay_is_timms(name):
    """The same as timm's own create_optimizer_v2 makes of the same model."""
    model = timm_model(name)
    expected = timm.optim.create_optimizer_v2(model, "adamw", lr=0.1, weight_decay=0.05)
    ours = settings(model, constructed(model))
    assert ours == settings(model, SafeOptimWrapper(expected))
    # The optimizer's own where the config leaves it open.
    found = settings(model, constructed(model, {"type": "AdamW", "lr": 0.1}), "weight_decay")
    assert {*found.values()} == {(0,), (0.01,)}
    exempt = model.no_weight_decay() if hasattr(model, "no_weight_decay") else set()
    for parameter, (decay, _) in ours.items():
        assert decay == (0 if parameter in exempt or model.get_parameter(parameter).ndim < 2 else 0.05), parameter


OWN_RATES = [("timm.adafactorbv", 1.0), ("timm.adamw", 1e-3), ("AdamW", 1e-3), ("timm.adafactor", None)]


@pytest.mark.parametrize(("kind", "rate"), OWN_RATES)
def test_layer_decay_of_the_optimizers_own_rate(kind, rate):
    """A rate that the optimizer adapts itself has no number."""
    model = timm_model("soft_pico")
    if rate is None:
        with pytest.raises(ValueError, match=r"optimizer\.lr"):
            constructed(model, {"type": kind}, layer_decay=0.5)
        return
    found = settings(model, constructed(model, {"type": kind}, layer_decay=0.5), "lr")
    assert found["head.weight"] == (rate,)
    assert min(lr for (lr,) in found.values()) < 0.1 * rate


@pytest.mark.parametrize("name", ["soft_pico", "vit_tiny_patch16_224"])
def test_layer_decay_by_hand(name):
    """0.5 for each layer below the head; weight decays stay."""
    model = timm_model(name)
    layers = timm.models.group_parameters(model, model.group_matcher(), reverse=True)
    top = max(layers.values())
    assert top > 5
    found, plain = (settings(model, constructed(model, **how)) for how in ({"layer_decay": 0.5}, {}))
    for parameter, (decay, rate) in found.items():
        assert rate == pytest.approx(0.1 * 0.5 ** (top - layers[parameter])), parameter
        assert decay == plain[parameter][0], parameter
    assert found["head.weight"][1] == 0.1


class Outsider(BaseModel):
    """A model with parameters beside those of the timm model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = timm_model("soft_pico")
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, inputs, data_samples=None, mode="tensor"):
        return self.model(inputs) / self.temperature


@pytest.mark.parametrize("layer_decay", [None, 0.5])
def test_others_get_the_optimizers_learning_rate(layer_decay):
    model = Outsider()
    assert settings(model, constructed(model, layer_decay=layer_decay))["temperature"] == (0.0, 0.1)


@pytest.mark.parametrize("options", [{"bias_decay_mult": 0.0}, {"layer_decay": 1.5}, {"layer_decay": 0}])
def test_other_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        constructed(timm_model("soft_pico"), **options)


# Schedules


def rates(schedule: dict, steps: int, epoch_length: int) -> list[list[float]]:
    """The learning rates of layers in each step, with the schedule saved and loaded after a third of them."""
    wrapper = constructed(timm_model("test_vit"), layer_decay=0.5)

    def built():
        return PARAM_SCHEDULERS.build({"optimizer": wrapper, "epoch_length": epoch_length, **schedule})

    found, scheduler = [], built()
    for index in range(steps):
        if index == steps // 3:
            kept = [group["lr"] for group in wrapper.param_groups]
            torch.save(scheduler.state_dict(), file := io.BytesIO())
            scheduler = built()
            scheduler.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
            for group, rate in zip(wrapper.param_groups, kept, strict=True):
                group["lr"] = rate
        found.append([group["lr"] for group in wrapper.optimizer.param_groups])
        wrapper.step()
        scheduler.step()
    return found


SCHEDULES = [
    {"sched": "wsd", "warmup_epochs": 2, "decay_epochs": 3, "min_lr": 1e-3},
    {"sched": "rsqrt", "warmup_epochs": 1, "warmup_lr": 1e-4},
    {"sched": "tanh", "min_lr": 1e-3},
    {"sched": "cosine", "k_decay": 0.5, "noise": [0.2, 0.9], "noise_seed": 3},
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule["sched"])
@pytest.mark.parametrize("epoch_length", [1, 7])
def test_rates_are_timms(schedule, epoch_length):
    """By epochs, and by iterations with lengths in epochs; warm-up and lowest rates are scaled by layer, too."""
    config = {"type": "TimmLR", "end": 10, "convert_to_iter_based": epoch_length > 1, **schedule}
    found = rates(config, 10 * epoch_length, epoch_length)
    model, how = timm_model("test_vit"), {"weight_decay": 0.05, "layer_decay": 0.5}
    optimizer = timm.optim.create_optimizer_v2(model, "adamw", lr=0.1, **how)
    how = dict(num_epochs=10, step_on_epochs=False, updates_per_epoch=epoch_length, **schedule)
    theirs, _ = timm.scheduler.create_scheduler_v2(optimizer, **how)
    for index, row in enumerate(found):
        theirs.step_update(index)
        assert row == [group["lr"] for group in optimizer.param_groups], index
    assert len({row[0] for row in found}) > 2
    assert all(math.isfinite(rate) for row in found for rate in row)


def test_a_schedule_after_another_leaves_its_rate_alone():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    PARAM_SCHEDULERS.build({"type": "LinearLR", "optimizer": optimizer, "start_factor": 1e-3, "end": 2})
    PARAM_SCHEDULERS.build({"type": "TimmLR", "optimizer": optimizer, "sched": "cosine", "begin": 2, "end": 9})
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)


# Runs


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "timm.lion")) for n in CHOSEN])
def test_resumed_run_with_clipping_accumulation_average_and_schedule(tmp_path, name):
    """Two epochs at once or one by one: the same weights, averages and moments. Five batches are 2, 2 and 1.

    The first epoch is the best so far, and its validation, with which the resumed run begins, counts once.
    """
    plateau = {"type": "ReduceOnPlateauLR", "monitor": "accuracy/top1", "rule": "greater", "patience": 0}
    options = tiny(images=10, batch=2, epochs=2, validation=2) | {
        "custom_hooks": [{"type": "EMAEvalHook", "momentum": 0.3}],
        "model.drop_path_rate": 0.1,
        "optim_wrapper.constructor": "TimmOptimWrapperConstructor",
        "optim_wrapper.paramwise_cfg": {"layer_decay": 0.9, "fallback_list": ["head.*"]},
        "optim_wrapper.optimizer.type": name,
        "optim_wrapper.accumulative_counts": 2,
        "optim_wrapper.clip_grad.max_norm": 0.1,
        "param_scheduler": [plateau, {"type": "TimmLR", "sched": "wsd", "convert_to_iter_based": True}],
        "default_hooks.checkpoint.save_best": "accuracy/top1",
    }
    parts = ("state_dict", "ema_state_dict", "optimizer", "param_schedulers")
    assert_resumes(DEMO, tmp_path, options, "epoch_1.pth", *parts)
