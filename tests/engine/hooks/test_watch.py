"""Pictures of batches, and what is logged of attentions."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import timm
import torch
from engine.runs import DEMO, assert_same_state, scalars, tiny

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


@pytest.mark.parametrize(("attention", "dead"), [("soft", True), ("soft_plus", False)])
def test_dead_attentions_are_named(attention, dead):
    """At 64 pixels, random SOFT weights give stage 3 less than a thousandth of its layers' output."""
    net = timm.create_model("soft_pico", img_size=64, depths=(1, 1, 1, 1), attention=attention)
    runner = Mock(model=SimpleNamespace(model=net), epoch=0, iter=0)
    WatchHook()._measure(runner, torch.randn(2, 3, 64, 64))
    assert runner.logger.warning.called == dead
    if dead:
        assert "stages.2.blocks.0.attn" in runner.logger.warning.call_args.args[0]
