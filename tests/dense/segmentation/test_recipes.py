"""The shipped configs: parameters as published, optimizer groups, and names that resolve."""

from pathlib import Path

import pytest
import torch
from mmengine.dataset import Compose
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS

from soft_vit.engine.config import check_keys, load_config

CONFIGS = Path(__file__).parents[3] / "configs" / "segmentation"
NAMES = sorted(path.name for path in CONFIGS.glob("*.py"))


def model_of(name):
    """Without the time and memory of initialising."""
    cfg = load_config(CONFIGS / name)
    with torch.device("meta"):
        return MODELS.build({**cfg.model, "data_preprocessor": None})


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_a_config_are_known(name):
    cfg = load_config(CONFIGS / name)
    check_keys(cfg)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        assert DATASETS.get(loader.dataset.type) is not None
        Compose(loader.dataset.pipeline)
    assert cfg.model.backbone.max_bottleneck == (7, 7)


# Arrangements and counts of the paper (arXiv 2207.03341), which says nothing of an auxiliary head; with mmseg's, a
# convolution of 256 channels on the third map, and its 512 channels in UPerNet the counts agree.
PUBLISHED = {"upernet_soft_norm_small_512_ade20k.py": 54e6, "upernet_soft_norm_medium_512_ade20k.py": 76e6}


def upernet_of_mmseg(widths, channels, num_classes):
    """Parameters of mmseg's UPerHead and FCNHead by their layers: convolution without bias, BatchNorm, ReLU."""

    def unit(inner, outer, kernel):
        return inner * outer * kernel**2 + 2 * outer

    pooling = 4 * unit(widths[-1], channels, 1) + unit(widths[-1] + 4 * channels, channels, 3)
    pyramid = sum(unit(width, channels, 1) + unit(channels, channels, 3) for width in widths[:-1])
    fusion = unit(len(widths) * channels, channels, 3)
    auxiliary = unit(widths[2], 256, 3) + 256 * num_classes + num_classes
    return pooling + pyramid + fusion + channels * num_classes + num_classes + auxiliary


@pytest.mark.parametrize("name", PUBLISHED)
def test_upernet_has_the_layers_of_mmseg_and_the_published_number_of_parameters(name):
    model = model_of(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(PUBLISHED[name], rel=0.03)
    own = sum(p.numel() for part in (model.decoder, model.head, model.auxiliary) for p in part.parameters())
    norms = 2 * sum(model.backbone.channels)
    assert own - norms == upernet_of_mmseg(model.backbone.channels, 512, 150)


@pytest.mark.parametrize("config_name", NAMES)
def test_norms_and_position_embeddings_have_no_weight_decay(config_name):
    cfg = load_config(CONFIGS / config_name)
    model = model_of(config_name)
    # A wrapper on the meta device can step nothing, and needs no precision.
    config = {**cfg.optim_wrapper, "type": "OptimWrapper"}
    decay = {id(p): g["weight_decay"] for g in build_optim_wrapper(model, config).param_groups for p in g["params"]}
    assert decay.keys() >= {id(parameter) for parameter in model.parameters()}
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            exempt = "pos_embed" in name or "Norm" in type(module).__name__
            if exempt or "ade20k" in config_name:
                assert (decay[id(parameter)] == 0) == exempt, f"{module_name}.{name}"
