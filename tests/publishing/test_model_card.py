"""The model card: its header, its facts, its snippet and its papers."""

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image
from publications import run

from soft_vit.data import draw_shape
from soft_vit.weights import load_index


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


def test_snippet_of_the_card_gives_the_model(published, averaged, monkeypatch):
    monkeypatch.chdir(published)
    code = (published / "soft_pico.mine.md").read_text().split("```python")[1].split("```")[0]
    names: dict = {}
    exec(code, names)
    (entry,) = load_index(published / "index.json")
    data = timm.data.resolve_model_data_config(names["model"])
    assert data == {key: entry.cfg[key] for key in data}
    shape = Image.fromarray(draw_shape(seed=1, index=5).image)
    # Crops nothing off: the pixels themselves, from -2 to 2 by this normalisation.
    images = (torch.from_numpy(np.array(shape)).permute(2, 0, 1)[None] - 127.5) / 64
    torch.testing.assert_close(names["transform"](shape)[None], images)
    expected = timm.create_model("soft_pico", num_classes=10, img_size=64, newton_iters=12).eval()
    expected.load_state_dict(averaged)
    with torch.no_grad():
        assert torch.equal(names["model"](images), expected(images))


@pytest.mark.parametrize(("model", "papers"), [("soft_pico", 1), ("soft_norm_pico", 2)])
def test_papers_of_the_card(model, papers, averaged, tmp_path):
    torch.save(averaged, tmp_path / "bare.pth")
    run(tmp_path / "bare.pth", tmp_path / "out", model=model, mean=[0.5] * 3, std=[0.25] * 3)
    card = (tmp_path / "out" / f"{model}.mine.md").read_text()
    assert card.count("\n@") == papers
    assert ("2207.03341" in card) == (model == "soft_norm_pico")
