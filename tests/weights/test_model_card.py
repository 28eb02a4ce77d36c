"""The model card: its header, its facts, its snippet and its papers."""

import numpy as np
import torch
from PIL import Image

from soft_vit.data import draw_shape


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
