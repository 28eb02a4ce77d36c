"""What a file of weights says of its images: by its own config, by its digest, and never by running any of it."""

import shutil

import pytest
import timm
import torch

from soft_vit.data import CLASSES
from soft_vit.engine.checkpoints.safe_checkpoint import load_checkpoint_file
from soft_vit.engine.checkpoints.trained_config import cfg_of_config, config_values, trained_cfg
from soft_vit.weights.folders import RESOURCES

VIEW = {"crop_pct": 1.0, "interpolation": "bicubic", "crop_mode": "center"}
DRAWN = {"dataset": {"type": "ShapesDataset", "size": 48}}
PIXELS = {"mean": [127.5] * 3, "std": [51, 51, 51]}
HALVES = {"mean": (0.5,) * 3, "std": (0.2,) * 3}


@pytest.mark.parametrize(
    ("config", "cfg"),
    [
        ({}, {}),
        ({"model": {"img_size": 64}}, {"input_size": (3, 64, 64)}),
        ({"model": {"img_size": [96, 33]}, "data_preprocessor": PIXELS}, {"input_size": (3, 96, 33), **HALVES}),
        ({"model": {"data_preprocessor": PIXELS}, "data_preprocessor": {"mean": [1] * 3}}, HALVES),
        ({"test_dataloader": DRAWN}, {"input_size": (3, 48, 48), **VIEW}),
        ({"model": {"img_size": 64}, "test_dataloader": DRAWN}, {"input_size": (3, 64, 64), **VIEW}),
        (
            {"test_dataloader": {"dataset": {"pipeline": [{"type": "TimmEvalCrop", "img_size": 80, "crop_pct": 0.9}]}}},
            {"input_size": (3, 80, 80), **VIEW, "crop_pct": 0.9},
        ),
    ],
    ids=["nothing", "size", "sides", "of the model", "drawn", "the model's size first", "cropped"],
)
def test_config(config, cfg):
    assert cfg_of_config(config) == cfg


@pytest.mark.parametrize(
    "config",
    [
        {"model": {"img_size": "64"}},
        {"model": {"img_size": -64}},
        {"model": {"img_size": True}},
        {"model": [1], "data_preprocessor": "x"},
        {"data_preprocessor": {"mean": ["a"] * 3, "std": [1] * 3}},
        {"data_preprocessor": {"mean": [1, 1, 1], "std": [1, 0, 1]}},
        {"data_preprocessor": {"mean": [1, 1, 1], "std": [1]}},
        {"data_preprocessor": {"mean": [float("nan")] * 3, "std": [1] * 3}},
        {"data_preprocessor": {"mean": [], "std": []}},
        {"test_dataloader": {"dataset": [1]}},
        {"test_dataloader": {"dataset": {"pipeline": [{"type": "TimmEvalCrop", "img_size": 8, "crop_pct": "x"}]}}},
        {"test_dataloader": {"dataset": {"pipeline": [{"type": "TimmEvalCrop", "img_size": 8, "other": 1}]}}},
        {"test_dataloader": {"dataset": {"pipeline": [{"type": 3}]}}},
        {"test_dataloader": {"dataset": {"pipeline": [{"type": "TimmEvalCrop", "img_size": 8, "crop_mode": "x"}]}}},
    ],
    ids=str,
)
def test_strange_values_are_passed_over(config):
    assert cfg_of_config(config) == {}


def test_checkpoint_of_a_training(tmp_path):
    meta = {"cfg": "model = dict(img_size=64)\nexecuted = open('x')\n", "dataset_meta": {"classes": ("a", "b")}}
    torch.save({"state_dict": {}, "meta": meta}, tmp_path / "a.pth")
    content = load_checkpoint_file(tmp_path / "a.pth")
    assert trained_cfg(content, tmp_path / "a.pth") == {"input_size": (3, 64, 64), "label_names": ("a", "b")}
    for strange in (3, [1], {"cfg": 3, "dataset_meta": [1]}, {"dataset_meta": {"classes": 3}}):
        assert trained_cfg({**content, "meta": strange}, tmp_path / "a.pth") == {}


def test_recorded_file_is_known_under_any_name(tmp_path):
    source, copy = RESOURCES / "checkpoints" / "soft_pico.shapes.safetensors", tmp_path / "other.safetensors"
    shutil.copy(source, copy)
    recorded = timm.get_pretrained_cfg("soft_pico.shapes")
    found = trained_cfg(load_checkpoint_file(copy), copy)
    assert found["label_names"] == CLASSES
    for key in ("input_size", "mean", "std", "crop_pct", "interpolation"):
        assert found[key] == getattr(recorded, key)
    data = bytearray(source.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(data)
    assert trained_cfg(load_checkpoint_file(copy), copy) == {}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a = dict(b=[1, (2, 'c')], d=dict(e=None))", {"a": {"b": [1, [2, "c"]], "d": {"e": None}}}),
        ("a = {'b': -1}\nc = 'd' 'e'", {"a": {"b": -1}, "c": "de"}),
        ("a = open('x')\nb = 1", {"b": 1}),
        ("a = dict(b=print(1))\nc = d.e\nimport os\nb = 2", {"b": 2}),
        ("a = dict(([1, 2],), b=1)", {}),
        ("a = {[1]: 2}", {}),
        ("a = (", {}),
        (None, {}),
        ("a = " + "[" * 300 + "]" * 300, {}),
    ],
)
def test_config_is_read_and_never_run(text, values, capsys):
    assert config_values(text) == values
    assert capsys.readouterr().out == ""
