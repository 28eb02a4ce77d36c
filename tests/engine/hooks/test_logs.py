"""What a run shows and writes of itself: lines, pictures, the attention of its model."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import timm
import torch
from engine.runs import DEMO, assert_same_state, scalars, tiny

from soft_vit.engine import DiagnosticsHook, JsonLinesBackend, train
from soft_vit.engine.hooks import diagnostics

# Progress line, JSON lines, and histories of bounded length.


def refuse(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def test_lines(tmp_path):
    backend = JsonLinesBackend(str(tmp_path))
    backend.add_scalars({"loss": torch.tensor(2.5), "grad_norm": float("nan"), "iter": 3}, step=3, file_path="run.json")
    backend.add_scalars({"accuracy/top1": np.float32(75.0), "cross_entropy": float("inf")}, step=1)
    # A later process appends.
    backend = JsonLinesBackend(str(tmp_path))
    backend.add_scalar("extra", torch.tensor(float("-inf")), step=4)
    backend.add_scalar("several", np.array([1.5, np.nan]), step=5)
    lines = [json.loads(line, parse_constant=refuse) for line in (tmp_path / "scalars.json").read_text().splitlines()]
    assert lines == [
        {"mode": "train", "loss": 2.5, "grad_norm": None, "iter": 3, "step": 3},
        {"mode": "val", "accuracy/top1": 75.0, "cross_entropy": None, "step": 1},
        {"extra": None, "step": 4},
        {"several": [1.5, None], "step": 5},
    ]
    assert json.loads((tmp_path / "run.json").read_text()) == lines[0]


# The first lines of a run, and what is in the log file alone.


def lines(text: str) -> dict[str, str]:
    """The sentence after each heading of the summary, without colours and times."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return dict(re.findall(r"INFO - (Data|Model|Schedule|Device|Results): (.*)\.$", plain, re.MULTILINE))


@pytest.mark.slow
def test_first_screen_of_a_run_and_of_a_resumed_one(tmp_path, capfd):
    options = tiny(images=6, batch=2, epochs=1) | {"model.frozen_stages": 1, "param_scheduler": []}
    train(DEMO, work_dir=tmp_path, options=options)
    screen = capfd.readouterr().out
    (log,) = tmp_path.glob("*/*.log")
    first, *_ = screen.partition("Epoch(train)")
    assert first.count("\n") <= 8
    found = lines(first)
    assert "6 images to train on, 4 for validation, 10 classes: circle, " in found["Data"]
    assert re.match(r"soft_pico, 0\.01 M parameters, 0\.00 M of them trained", found["Model"])
    assert found["Results"] == f"{tmp_path}, log {log}"
    assert lines(log.read_text()) == found

    train(DEMO, work_dir=tmp_path, options=options | {"train_cfg.max_epochs": 2}, resume="auto", validate=False)
    model = lines(capfd.readouterr().out)["Model"]
    assert model.endswith(f"resumed from {tmp_path}/epoch_1.pth at iteration 3")


# Pictures of batches, and what is logged of attentions.


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
        patch.setattr(diagnostics, "PICTURE_EPOCHS", 2)
        hooks = {"default_hooks.watch": {"type": "DiagnosticsHook", "interval": 4}}
        # The validation without attentions is none of the run's.
        hooks["custom_hooks"] = [{"type": "AttentionReportHook", "num_images": 0}]
        train(DEMO, work_dir=folder, options=OPTIONS | hooks)
    return folder


def test_watching_changes_nothing(watched, tmp_path):
    train(DEMO, work_dir=tmp_path, validate=False, options={**OPTIONS, "default_hooks.watch": None})
    assert_same_state(watched / "epoch_3.pth", tmp_path / "epoch_3.pth")


def test_what_is_logged(watched):
    """Pictures show the first batches of epochs 1 and 3."""
    lines = scalars(watched)
    for key, stages in (("newton_residual", (1,)), ("attention_share", (1, 2))):
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

    (log,) = watched.glob("*/*.log")
    assert re.search("attentions off: .*accuracy/top1", log.read_text())
    folder = next(watched.glob("*/vis_data"))
    assert sorted(path.name for path in (folder / "vis_image").iterdir()) == ["train_batch_1.png", "train_batch_7.png"]


@pytest.mark.parametrize(("attention", "dead"), [("soft", True), ("soft_plus", False)])
def test_dead_attentions_are_named(attention, dead):
    """At 64 pixels, random SOFT weights give stage 3 less than a thousandth of its layers' output."""
    net = timm.create_model("soft_pico", img_size=64, depths=(1, 1, 1, 1), attention=attention)
    runner = Mock(model=SimpleNamespace(model=net), epoch=0, iter=0)
    DiagnosticsHook()._measure(runner, torch.randn(2, 3, 64, 64))
    assert runner.logger.warning.called == dead
    if dead:
        assert "stages.2.blocks.0.attn" in runner.logger.warning.call_args.args[0]
