"""A small model of each family in every format, against the model."""

import pytest
import timm
import torch
from models.zoo.families import SMALL

from soft_vit.export import FORMATS, ExportModel, export


@pytest.mark.slow
@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize(
    ("format", "any_size"), [("onnx", False), ("torchscript", False), ("torch_export", True), ("onnx", True)], ids=str
)
def test_every_family(family, format, any_size, tmp_path):
    name, small = SMALL[family]
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=7, img_size=64, **small).eval().requires_grad_(False)
    if any_size and model.pretrained_cfg["fixed_input_size"]:
        pytest.skip("of one size")
    source = ExportModel(name, model, (3, 64, 64), mean=(0.5,) * 3, std=(0.25,) * 3)
    export(source, tmp_path / f"model{FORMATS[format].suffix}", format, any_size=any_size, report=lambda line: None)
