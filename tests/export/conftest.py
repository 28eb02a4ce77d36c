"""A trained model, and one of few nodes."""

import pytest
import timm
import torch

from soft_vit.data import CLASSES
from soft_vit.export import ExportModel, load_export_model


@pytest.fixture(scope="session")
def pico() -> ExportModel:
    return load_export_model("soft_pico.shapes")


@pytest.fixture(scope="session")
def small() -> ExportModel:
    """Two stages and few iterations: what there is to export, in few nodes."""
    torch.manual_seed(0)
    sizes = dict(embed_dims=(32, 64), num_heads=(1, 2), depths=(1, 1), sr_ratios=(8, 4), newton_iters=2)
    model = timm.create_model("soft_pico", num_classes=10, img_size=64, **sizes).eval().requires_grad_(False)
    return ExportModel("soft_pico", model, (3, 64, 64), mean=(0.5,) * 3, std=(64 / 255,) * 3, classes=CLASSES)
