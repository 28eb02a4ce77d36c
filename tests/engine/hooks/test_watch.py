"""Pictures of batches, and what is logged of attentions."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import timm
import torch
from engine.runs import DEMO, assert_same_state, scalars, tiny
from mmpretrain.structures import DataSample
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from soft_vit.data import CLASSES
from soft_vit.engine import WatchHook, train
from soft_vit.engine.hooks import watch

# Epochs of 3 batches.
OPTIONS = tiny(images=6, batch=2, epochs=3, validation=4, size=64) | {
    "model.drop_path_rate": 0.2,
    "model.sampling": "random",
    "model.train_cfg": {"augments": [{"type": "Mixup", "alpha": 0.8}]},
}


@pytest.fixture(scope="module")
def watched(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "PICTURE_EPOCHS", 2)
        train(DEMO, work_dir=folder, options={**OPTIONS, "default_hooks.watch": {"type": "WatchHook", "interval": 4}})
    return folder


def test_watching_changes_nothing(watched, tmp_path):
    train(DEMO, work_dir=tmp_path, validate=False, options={**OPTIONS, "default_hooks.watch": None})
    assert_same_state(watched / "epoch_3.pth", tmp_path / "epoch_3.pth")


def test_what_is_logged(watched):
    """Pictures show the first batches of epochs 1 and 3."""
    lines = scalars(watched)
    for key, stages in (("newton_residual", (1, 2, 3)), ("attention_share", (1, 2, 3, 4))):
        measured = [line for line in lines if f"{key}/stage1" in line]
        assert [line["iter"] for line in measured] == [1, 5, 9]
        assert all(0 <= line[f"{key}/stage{stage}"] < 2 for line in measured for stage in stages)
    steps = [line for line in lines if "loss" in line]
    assert [(line["mode"], line["step"]) for line in steps] == [("train", step) for step in range(1, 10)]
    for line in steps:
        assert line["images_per_second"] == pytest.approx(2 / line["time"])
        assert {"lr", "grad_norm"} <= line.keys()
    validations = [(line["mode"], line["step"]) for line in lines if "accuracy/top1" in line]
    assert validations == [("val", epoch) for epoch in (1, 2, 3)]

    folder = next(watched.glob("*/vis_data"))
    assert sorted(path.name for path in (folder / "vis_image").iterdir()) == ["train_batch_1.png", "train_batch_7.png"]
    events = EventAccumulator(str(folder))
    events.Reload()
    assert {"loss", "newton_residual/stage3", "accuracy/top1"} <= set(events.Tags()["scalars"])
    assert [image.step for image in events.Images("train_batch")] == [1, 7]


@pytest.mark.parametrize(("attention", "dead"), [("soft", True), ("soft_plus", False)])
def test_dead_attentions_are_named(attention, dead):
    """At 64 pixels, random SOFT weights give stage 3 less than a thousandth of its layers' output."""
    net = timm.create_model("soft_pico", img_size=64, depths=(1, 1, 1, 1), attention=attention)
    runner = Mock(model=SimpleNamespace(model=net), epoch=0, iter=0)
    WatchHook()._measure(runner, torch.randn(2, 3, 64, 64))
    assert runner.logger.warning.called == dead
    if dead:
        assert "stages.2.blocks.0.attn" in runner.logger.warning.call_args.args[0]


@pytest.mark.parametrize(
    ("score", "names", "text"),
    [
        (None, CLASSES, "star 1.00"),
        (None, None, "3 1.00"),
        ([0.31, 0.0, 0.0, 0.69], CLASSES, "star 0.69 + circle 0.31"),
        ([0.2, 0.3, 0.5, 0.0], None, "2 0.50 + 1 0.30"),
    ],
)
def test_picture_shows_pixels_and_labels(score, names, text, monkeypatch):
    sample = DataSample().set_gt_label(3)
    if score is not None:
        sample.set_gt_score(torch.tensor(score))
    mean, std = torch.tensor([9.0, 50, 99])[:, None, None], torch.tensor(17.0)
    pixels = torch.randint(256, (4, 3, 40, 120))
    shown = []
    monkeypatch.setattr(watch, "picture_grid", lambda *given: shown.extend(given))
    runner = Mock(model=SimpleNamespace(data_preprocessor=SimpleNamespace(mean=mean, std=std)), iter=0)
    runner.train_dataloader.dataset.metainfo = {"classes": names}
    WatchHook()._draw(runner, (pixels - mean) / std, [sample] * 4)
    assert (np.stack(shown[0]) == pixels.permute(0, 2, 3, 1).numpy()).all()
    assert shown[1] == [text] * 4
