"""What a test shows of an image, by a config or by timm, and what its classes are called."""

import pytest
from mmengine.config import Config

from soft_vit.engine.data.views import View, set_view, timm_view, view_of_config


def config(pipeline: list, **dataset) -> Config:
    loader = {"dataset": {"type": "AnyDataset", "pipeline": pipeline, **dataset}}
    return Config({"test_dataloader": loader, "model": {"type": "AnyModel"}})


RESIZE = {"type": "ResizeEdge", "scale": 256}


@pytest.mark.parametrize(
    ("cfg", "asked", "expected"),
    [
        (config([{"type": "TimmEvalCrop", "img_size": 224, "crop_pct": 0.9}]), (288, None), View(288, 0.9)),
        (config([{"type": "soft_vit.TimmEvalCrop", "img_size": 192}]), (None, 1.0), View(192, 1.0)),
        (config([], size=64), (96, None), View(96, 1.0)),
        (config([]), (100, None), View(100, 0.875)),
    ],
)
def test_view_of_a_config(cfg, asked, expected):
    assert view_of_config(cfg, *asked) == expected


def test_view_is_set_between_loading_and_packing():
    """In each data set inside of others."""
    load, pack = {"type": "LoadImageFromFile"}, {"type": "mmpretrain.datasets.PackInputs", "meta_keys": ()}
    drawn = {"type": "A", "size": 64}
    inner = [{"type": "RepeatDataset", "dataset": drawn}, {"type": "B", "pipeline": [load, RESIZE, pack]}]
    cfg = Config({"test_dataloader": {"dataset": {"type": "ConcatDataset", "datasets": inner}}, "model": {}})
    set_view(cfg, View(96, 0.9, "lanczos", "squash", (0.5, 0.4, 0.3), (0.2, 0.2, 0.2)))
    crop = {"type": "TimmEvalCrop", "img_size": 96, "crop_pct": 0.9, "interpolation": "lanczos", "crop_mode": "squash"}
    repeated, other = cfg.test_dataloader.dataset.datasets
    assert repeated.dataset == {"type": "A", "size": 96, "pipeline": [crop, {"type": "PackInputs"}]}
    assert other.pipeline == [load, crop, pack]
    assert "pipeline" not in cfg.test_dataloader.dataset
    assert cfg.data_preprocessor.mean == pytest.approx([127.5, 102, 76.5])
    assert cfg.data_preprocessor.std == pytest.approx([51, 51, 51])


def test_view_of_timm_is_the_one_it_reports():
    cfg = {"input_size": (3, 224, 224), "crop_pct": 0.875, "test_input_size": (3, 288, 288), "test_crop_pct": 1.0}
    assert (timm_view(cfg).img_size, timm_view(cfg).crop_pct) == (288, 1.0)
    assert (timm_view(cfg, 320, 0.9).img_size, timm_view(cfg, 320, 0.9).crop_pct) == (320, 0.9)
    with pytest.raises(ValueError, match="224 x 192"):
        timm_view({"input_size": (3, 224, 192)})
    with pytest.raises(ValueError, match="img_size"):
        view_of_config(config([]), None, 0.9)
