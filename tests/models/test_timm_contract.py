"""What timm expects of one of its own models, for every registered model.

They are built and run on the meta device, which checks shapes and names; in test_pyramid.py small ones compute.
"""

import pytest
import timm
import torch
from timm.data import resolve_data_config
from timm.models import group_parameters

import soft_vit.models
from soft_vit.layers import ATTENTIONS, attention_options
from soft_vit.models import PyramidViT, model_name
from soft_vit.models.pyramid import default_cfgs

MODELS = sorted(default_cfgs)
# Sizes differ in numbers alone, of which test_names.py has a table: pico of every kind, and tiny of SOFT.
SLOW = [name for name in MODELS if not ("pico" in name or (name.startswith("soft_") and "tiny" in name))]


def create(name: str, **kwargs) -> PyramidViT:
    torch.manual_seed(0)
    return timm.create_model(name, **{"num_classes": 11, **kwargs})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in MODELS]
)
def test_every_model(name):
    assert timm.is_model(name)
    model = create(name, device="meta", num_classes=1000)
    assert isinstance(model, PyramidViT)
    assert (model.num_classes, model.in_chans, model.global_pool) == (1000, 3, "avg" if "plus" in name else "token")
    assert model.num_features == model.head_hidden_size == model.embed_dims[-1]

    cfg = model.pretrained_cfg
    assert cfg["architecture"] == name
    assert model.state_dict()[cfg["first_conv"] + ".weight"].shape[1] == cfg["input_size"][0]
    assert model.get_submodule(cfg["classifier"]) is model.get_classifier()
    assert model.stages[-1].grid_size == tuple(cfg["pool_size"])
    assert resolve_data_config(model=model)["crop_pct"] == 0.875

    parameters = {n for n, _ in model.named_parameters()}
    for coarse in (False, True):
        groups = group_parameters(model, model.group_matcher(coarse=coarse))
        assert {n for names in groups.values() for n in names} == parameters
        # Stem, one group for each stage or block, and the rest (norm and head) on its own or in one.
        expected = 4 if coarse else sum(model.depths)
        assert expected + 1 <= len(groups) <= expected + 3
    tokens = {"stages.3.cls_token"} if model.has_class_token else {"stages.3.pos_embed"}
    assert tokens <= model.no_weight_decay() <= parameters


@pytest.mark.parametrize(
    "name", [name if name.endswith("_pico") else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_shapes(name):
    # A block of each stage has the shapes of all.
    model = create(name, device="meta", features_only=True, depths=(1, 1, 1, 1))
    features = model(torch.empty(1, 3, 96, 160, device="meta"))
    assert [f.shape[1] for f in features] == model.feature_info.channels()
    for feature, reduction in zip(features, model.feature_info.reduction(), strict=True):
        assert feature.shape[2:] == (96 // reduction, 160 // reduction)


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_every_option_of_an_attention_reaches_it_through_timm(kind):
    options = {name: value for name, value in attention_options(ATTENTIONS[kind]).items() if value is not None}
    create(model_name(kind, "pico"), device="meta", **options)


# A soft_* without weights of its own takes those of its normalised form.
WITH_WEIGHTS = {name for name in MODELS if timm.is_model_pretrained(name)}
WITH_WEIGHTS |= {name.replace("soft_norm_", "soft_") for name in WITH_WEIGHTS}


@pytest.mark.parametrize("name", sorted(set(MODELS) - WITH_WEIGHTS))
def test_pretrained_without_weights_says_so(name):
    with pytest.raises(RuntimeError, match="No pretrained weights"):
        create(name, pretrained=True)


def test_every_name_is_there_once():
    names = soft_vit.models.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(soft_vit.models, name) for name in names)
    assert set(soft_vit.models.PYRAMID_MODELS) == set(timm.list_models(module="pyramid")) <= set(names)
