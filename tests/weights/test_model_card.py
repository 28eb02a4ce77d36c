"""The model card: its header, its facts, its snippet and its papers."""

import numpy as np
import torch
import yaml
from PIL import Image

from soft_vit.data import draw_shape


def test_card(published):
    card = (published / "soft_pico.mine.md").read_text()
    header = yaml.safe_load(card.split("---")[1])
    assert header["license"] == "mit"
    assert header["library_name"] == "timm"
    assert header["datasets"] == ["generated shapes"]
    assert header["metrics"] == ["top1"]
    (result,) = header["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "top1", "value": 97.7}]
    for row in ("| epochs | 5 |", "| optimizer | AdamW |", "| weights | moving average |", "| classes | 10 |"):
        assert row in card


def test_snippet_of_the_card_gives_the_model(published, assert_published, monkeypatch):
    monkeypatch.chdir(published)
    code = (published / "soft_pico.mine.md").read_text().split("```python")[1].split("```")[0]
    names: dict = {}
    exec(code, names)
    assert_published(names["model"])
    shape = Image.fromarray(draw_shape(seed=1, index=5).image)
    # The whole image, with values from -2 to 2.
    image = (torch.from_numpy(np.array(shape)).permute(2, 0, 1) - 127.5) / 64
    torch.testing.assert_close(names["transform"](shape), image)
