"""What a checkpoint notes of its model and its images, written by a run and read without running any of it."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from torch import nn

from soft_vit.engine import TimmProgressClassifier
from soft_vit.engine.models.notes import cfg_of_config, notes_of_run
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.weights.read import NOTES_KEY, trained_notes

VIEW = {"crop_pct": 1.0, "interpolation": "bicubic", "crop_mode": "center"}
DRAWN = {"dataset": {"type": "ShapesDataset", "size": 48}}
CROPPED = {"dataset": {"pipeline": [{"type": "TimmEvalCrop", "img_size": 80, "crop_pct": 0.9}]}}
PIXELS = {"mean": [127.5] * 3, "std": [51, 51, 51]}
HALVES = {"mean": (0.5,) * 3, "std": (0.2,) * 3}


@pytest.mark.parametrize(
    ("config", "cfg"),
    [
        ({}, {}),
        ({"model": {"img_size": [96, 33]}, "data_preprocessor": PIXELS}, {"input_size": (3, 96, 33), **HALVES}),
        ({"model": {"data_preprocessor": PIXELS}, "data_preprocessor": {"mean": [1] * 3}}, HALVES),
        ({"model": {"img_size": 64}, "test_dataloader": DRAWN}, {"input_size": (3, 64, 64), **VIEW}),
        ({"test_dataloader": CROPPED}, {"input_size": (3, 80, 80), **VIEW, "crop_pct": 0.9}),
    ],
)
def test_config(config, cfg):
    assert cfg_of_config(config) == cfg


def test_a_run_notes_its_model_and_its_images(tmp_path):
    options = {"num_classes": 2, "drop_path_rate": 0.1, "max_bottleneck": (2, 2), "global_pool": "avg"}
    config = {
        "model": {"type": "TimmProgressClassifier", "model_name": "soft_norm_pico", "img_size": 64, **options},
        "test_dataloader": DRAWN,
        "train_cfg": {"max_epochs": 5, "type": "/home/me/loop"},
        "optim_wrapper": {"optimizer": {"type": "AdamW", "lr": 0.001}},
    }
    data = SimpleNamespace(dataset=SimpleNamespace(metainfo={"classes": ["a b", "c"]}))
    classifier = TimmProgressClassifier("soft_norm_pico", img_size=64, num_classes=2, data_preprocessor=PIXELS)
    runner = SimpleNamespace(cfg=Config(config), model=classifier, train_dataloader=data)
    notes = notes_of_run(runner)
    torch.save({"state_dict": {}, "meta": {NOTES_KEY: notes.to_dict()}}, tmp_path / "a.pth")
    read = trained_notes(load_checkpoint_file(tmp_path / "a.pth"), tmp_path / "a.pth")
    assert read == notes
    assert read.model == "soft_norm_pico"
    assert read.options == {"img_size": [64, 64], "max_bottleneck": (2, 2), "global_pool": "avg"}
    assert read.cfg == {**VIEW, "input_size": (3, 64, 64), **HALVES, "label_names": ("a b", "c")}
    assert read.training == {"epochs": "5", "optimizer": "AdamW", "learning rate": "0.001"}


def test_a_checkpoint_without_notes_names_its_classes(tmp_path):
    assert notes_of_run(SimpleNamespace(model=nn.Linear(1, 1))) is None
    torch.save({"state_dict": {}, "meta": {"dataset_meta": {"classes": ("a", "b")}}}, tmp_path / "a.pth")
    content = load_checkpoint_file(tmp_path / "a.pth")
    assert trained_notes(content, tmp_path / "a.pth").cfg == {"label_names": ("a", "b")}
    for strange in (3, [1], {"cfg": 3, "dataset_meta": [1]}, {"dataset_meta": {"classes": 3}}):
        assert trained_notes({**content, "meta": strange}, tmp_path / "a.pth").cfg == {}
