"""What CONTRIBUTING.md shows is true."""

import re
from pathlib import Path

import timm
import torch

from soft_vit.layers import ATTENTIONS
from soft_vit.models import soft

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


def test_worked_example_of_an_attention():
    file, line, case = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names = {"torch": torch, "ATTENTIONS": ATTENTIONS}
    exec(file, names)
    try:
        exec(line, names)
        exec(case, names)
        names["test_equals_the_dense_formula"]()
        assert "efficient_pyramid_tiny" in soft._model_table()
        model = timm.create_model("soft_pico", attention="efficient", img_size=64).eval()
        assert type(model.stages[0].blocks[0].attn).__name__ == "EfficientAttention"
        assert model(torch.randn(1, 3, 64, 64)).isfinite().all()
    finally:
        ATTENTIONS.pop("efficient", None)
