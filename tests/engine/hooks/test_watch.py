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
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from soft_vit.data import CLASSES
from soft_vit.engine import WatchHook, train
from soft_vit.engine.hooks.watch import batch_grid, label_text

# Epochs of 3 batches.
OPTIONS = tiny(images=12, batch=4, epochs=3, validation=10, size=64) | {
    "model.drop_path_rate": 0.2,
    "model.sampling": "random",
    "model.train_cfg": {"augments": [{"type": "Mixup", "alpha": 0.8}]},
}
WATCH = {"type": "WatchHook", "batch_interval": 2, "num_images": 3, "newton_interval": 4, "newton_images": 2}


@pytest.fixture(scope="module")
def watched(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    train(DEMO, work_dir=folder, options={**OPTIONS, "default_hooks.watch": WATCH})
    return folder


def test_watching_changes_nothing(watched, tmp_path):
    train(DEMO, work_dir=tmp_path, options={**OPTIONS, "default_hooks.watch": None})
    assert_same_state(watched / "epoch_3.pth", tmp_path / "epoch_3.pth")


def test_lines_of_the_log(watched):
    lines = scalars(watched)
    for key, stages in (("newton_residual", (1, 2, 3)), ("attention_share", (1, 2, 3, 4))):
        measured = [line for line in lines if f"{key}/stage1" in line]
        assert [line["iter"] for line in measured] == [1, 5, 9]
        assert all(0 <= line[f"{key}/stage{stage}"] < 2 for line in measured for stage in stages)
    steps = [line for line in lines if "loss" in line]
    assert [(line["mode"], line["step"]) for line in steps] == [("train", step) for step in range(1, 10)]
    for line in steps:
        assert line["images_per_second"] == pytest.approx(4 / line["time"])
        assert line["memory"] > 0
        assert {"lr", "grad_norm"} <= line.keys()
    validations = [(line["mode"], line["step"]) for line in lines if "accuracy/top1" in line]
    assert validations == [("val", epoch) for epoch in (1, 2, 3)]


def test_pictures_and_tensorboard(watched):
    """The first batches of epochs 1 and 3."""
    folder = next(watched.glob("*/vis_data"))
    pictures = folder / "vis_image"
    assert sorted(path.name for path in pictures.iterdir()) == ["train_batch_1.png", "train_batch_7.png"]
    # Three images of 64 pixels, each shown as 128.
    assert Image.open(pictures / "train_batch_1.png").size == (2 * 130, 2 * (130 + 14))
    events = EventAccumulator(str(folder))
    events.Reload()
    logged = {"loss", "lr", "grad_norm", "images_per_second", "memory", "newton_residual/stage3", "accuracy/top1"}
    assert logged <= set(events.Tags()["scalars"])
    assert [image.step for image in events.Images("train_batch")] == [1, 7]


@pytest.mark.parametrize(("attention", "dead"), [("soft", True), ("soft_plus", False)])
def test_dead_attentions_are_named(attention, dead):
    """At 64 pixels, random SOFT weights give stage 3 less than a thousandth of its layers' output."""
    torch.manual_seed(0)
    net = timm.create_model("soft_pico", img_size=64, depths=(1, 1, 1, 1), attention=attention)
    logger, visualizer = Mock(), Mock()
    runner = SimpleNamespace(model=SimpleNamespace(model=net), epoch=0, iter=0, logger=logger, visualizer=visualizer)
    WatchHook()._measure(runner, torch.randn(2, 3, 64, 64))
    assert logger.warning.called == dead
    if dead:
        assert "stages.2.blocks.0.attn" in logger.warning.call_args.args[0]


def test_picture_shows_the_pixels_that_were_normalised():
    mean, std = torch.tensor([9.0, 50, 99])[:, None, None], torch.tensor(17.0)
    pixels = torch.randint(256, (4, 3, 40, 120), generator=torch.Generator().manual_seed(0))
    runner = SimpleNamespace(
        model=SimpleNamespace(data_preprocessor=SimpleNamespace(mean=mean, std=std)), iter=0, visualizer=Mock()
    )
    runner.train_dataloader = SimpleNamespace(dataset=SimpleNamespace(metainfo={"classes": CLASSES}))
    samples = [DataSample().set_gt_label(i) for i in range(4)]
    WatchHook(num_images=2)._draw(runner, (pixels - mean) / std, samples)
    picture = runner.visualizer.add_image.call_args.args[1]
    assert picture.shape == (40 + 16, 2 * 122, 3)
    assert (picture[1:41, 1:121] == pixels[0].permute(1, 2, 0).numpy()).all()
    assert (picture[1:41, 123:243] == pixels[1].permute(1, 2, 0).numpy()).all()


@pytest.mark.parametrize(
    ("score", "names", "text"),
    [
        (None, CLASSES, "star"),
        (None, None, "3"),
        ([0.31, 0.0, 0.0, 0.69], CLASSES, "star 0.69 + circle 0.31"),
        ([0.2, 0.3, 0.5, 0.0], None, "2 0.50 + 1 0.30"),
    ],
)
def test_label(score, names, text):
    sample = DataSample().set_gt_label(3)
    if score is not None:
        sample.set_gt_score(torch.tensor(score))
    assert label_text(sample, names) == text


def test_grid_shows_every_pixel():
    images = np.random.default_rng(0).integers(0, 256, (5, 40, 30, 3), dtype=np.uint8)
    grid = batch_grid(images, ["a", "b", "c", "d", "a label much longer than its image is wide"])
    # 30 pixels four times are the first multiple above 112; three columns, two rows.
    assert grid.shape == (2 * (160 + 2 + 14), 3 * (120 + 2), 3)
    assert (grid[1:161:4, 1:121:4] == images[0]).all()
    assert (grid[177:337, 123:243][3::4, 3::4] == images[4]).all()
    assert (grid[162:175, 1:121] < 128).any()
