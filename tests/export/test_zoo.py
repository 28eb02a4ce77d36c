"""A small model of each family in both formats, against the model."""

import pytest
import timm
import torch
from models.zoo.families import SMALL

from soft_vit.export import FORMATS, ExportModel, export

# Windows of Swin are cut for one size; DeiT takes multiples of 16 alone.
ONE_SIZE = ("inline_swin", "pola_swin", "flatten_swin", "inline_deit")
CASES = [(family, format, family not in ONE_SIZE) for family in SMALL for format in FORMATS]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "format", "any_size"), CASES, ids=str)
def test_every_family(family, format, any_size, tmp_path):
    name, small = SMALL[family]
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=7, img_size=64, **small).eval().requires_grad_(False)
    source = ExportModel(name, model, (3, 64, 64), mean=(0.5,) * 3, std=(0.25,) * 3)
    path = tmp_path / f"model{FORMATS[format].suffix}"
    export(source, path, format, any_size=any_size, report=lambda line: None)
