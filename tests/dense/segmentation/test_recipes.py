"""The shipped configs: parameters as published, optimizer groups, and names that resolve."""

from pathlib import Path

import pytest
import torch
from mmengine.dataset import Compose
from mmengine.registry import DATASETS, MODELS

from soft_vit.engine.config import resolve

CONFIGS = Path(__file__).parents[3] / "configs" / "segmentation"
NAMES = sorted(path.name for path in CONFIGS.glob("*.py"))


def model_of(name):
    """Without the time and memory of initialising."""
    cfg = resolve(CONFIGS / name)
    with torch.device("meta"):
        return MODELS.build({**cfg.model, "data_preprocessor": None})


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_a_config_are_known(name):
    cfg = resolve(CONFIGS / name)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        assert DATASETS.get(loader.dataset.type) is not None
        Compose(loader.dataset.pipeline)
    assert cfg.model.backbone.max_bottleneck == (7, 7)


# Parameters as published (arXiv 2207.03341). The paper does not describe an auxiliary head; with that of mmseg, a
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
