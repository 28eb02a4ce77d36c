"""Which parameter gets which weight decay and learning rate."""

import pytest
import timm
import torch
from mmengine.model import BaseModel
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DefaultScope
from torch import nn

import soft_vit  # noqa: F401  registers the models
from soft_vit.engine import SafeOptimWrapper


def build(model: nn.Module, weight_decay: float = 0.05, **paramwise_cfg):
    config = {
        "constructor": "TimmOptimWrapperConstructor",
        "optimizer": {"type": "AdamW", "lr": 0.1, "weight_decay": weight_decay},
        **({"paramwise_cfg": paramwise_cfg} if paramwise_cfg else {}),
    }
    with DefaultScope.overwrite_default_scope("mmpretrain"):
        return build_optim_wrapper(model, config)


def settings(model: nn.Module, wrapper) -> dict[str, tuple[float, float]]:
    """(weight decay, learning rate) by name; every trained parameter is in one group."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [
        (names[id(parameter)], (group["weight_decay"], group["lr"]))
        for group in wrapper.optimizer.param_groups
        for parameter in group["params"]
    ]
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert sorted(name for name, _ in found) == sorted(trained)
    return dict(found)


def timm_model(name: str) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name, num_classes=10)


MODELS = ["soft_pico", "performer_pyramid_pico", "vit_tiny_patch16_224", "convnext_atto"]


@pytest.mark.parametrize("name", MODELS)
def test_weight_decay_is_timms(name):
    """The same as timm's own create_optimizer_v2 makes of the same model."""
    model = timm_model(name)
    expected = timm.optim.create_optimizer_v2(model, "adamw", lr=0.1, weight_decay=0.05)
    ours = build(model)
    assert settings(model, ours) == settings(model, SafeOptimWrapper(expected))
    exempt = model.no_weight_decay() if hasattr(model, "no_weight_decay") else set()
    for parameter, (decay, _) in settings(model, ours).items():
        assert decay == (0 if parameter in exempt or model.get_parameter(parameter).ndim < 2 else 0.05), parameter


@pytest.mark.parametrize("name", ["soft_pico", "vit_tiny_patch16_224"])
def test_layer_decay_by_hand(name):
    """0.5 for each layer below the head."""
    model = timm_model(name)
    layers = timm.models.group_parameters(model, model.group_matcher(), reverse=True)
    top = max(layers.values())
    assert top > 5
    found = settings(model, build(model, layer_decay=0.5))
    for parameter, (_, rate) in found.items():
        assert rate == pytest.approx(0.1 * 0.5 ** (top - layers[parameter])), parameter
    assert found["head.weight"][1] == 0.1
    decays = {parameter: decay for parameter, (decay, _) in found.items()}
    assert decays == {parameter: decay for parameter, (decay, _) in settings(model, build(model)).items()}


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
    assert settings(model := Outsider(), build(model, layer_decay=layer_decay))["temperature"] == (0.0, 0.1)


def test_unknown_key():
    with pytest.raises(ValueError, match="bias"):
        build(timm_model("soft_pico"), bias_decay_mult=0.0)
