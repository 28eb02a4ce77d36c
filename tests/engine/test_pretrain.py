"""Masks, targets and losses against their formulas, and runs that stop, continue, and end in weights that load."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from engine.runs import CONFIGS, NARROW, NARROW_MODEL, assert_same_state, tiny
from mmengine.registry import MODELS
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from soft_vit.engine import pretrain, train
from soft_vit.engine.models.masked import MaskedImageModel, draw_masks, last_map
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.probe.curves import read_run
from soft_vit.weights.load import load_into

VIT = ("vit_tiny_patch16_224", dict(depth=1, embed_dim=24, num_heads=2))


def masked(name: str = "soft_pico", **options: Any) -> MaskedImageModel:
    torch.manual_seed(0)
    options = {"mask_patch": 16, "data_preprocessor": dict(type="RecipeDataPreprocessor"), **options}
    return MaskedImageModel(name, **options)


@pytest.mark.parametrize(("size", "ratio", "count"), [((40, 66), 0.5, 8), ((32, 32), 0.99, 3)])
def test_masks_are_whole_squares(size: tuple[int, int], ratio: float, count: int) -> None:
    masks = draw_masks(50, size, 16, ratio)
    for mask in masks[:, 0]:
        squares = [part for rows in mask.split(16) for part in rows.split(16, dim=1)]
        assert all(part.min() == part.max() for part in squares)
        assert sum(part.max().item() for part in squares) == count
    # Each square has its turn, and images differ.
    assert 0 < masks.mean(0).min() <= masks.mean(0).max() < 1


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("name", "options"), [("soft_pico", NARROW), ("mila_pyramid_pico", NARROW), VIT])
def test_loss_is_the_error_where_the_mask_is(name: str, options: dict[str, Any], norm: bool) -> None:
    x = torch.randn(3, 3, 72, 56).mul(3)
    model = masked(name, norm_target=norm, **(options | {"img_size": (72, 56)})).eval()
    masks = model.draw(x)
    found, target = model.predict_hidden(x, masks), x.double().clone()
    for top in range(0, 72, 16) if norm else ():
        for left in range(0, 56, 16):
            part = target[..., top : top + 16, left : left + 16]
            part -= part.mean((2, 3), keepdim=True)
            part /= (part.square().mean((2, 3), keepdim=True) + 1e-6).sqrt()
    expected = (found - target).abs()[masks.expand_as(x) > 0].mean()
    torch.testing.assert_close(model.loss(x, masks=masks)["loss"].double(), expected, rtol=2e-6, atol=0)
    # What is hidden changes nothing, and what is visible does.
    assert torch.equal(model.predict_hidden(torch.where(masks > 0, torch.randn_like(x), x), masks), found)
    assert not torch.allclose(model.predict_hidden(x + 1, masks), found)


def test_features_of_a_teacher(tmp_path: Path) -> None:
    """The target is the teacher's last map on the cells of the student's, and the loss is at masked cells."""
    timm.models.save_for_hf(timm.create_model(VIT[0], img_size=64, **VIT[1]), tmp_path, safe_serialization=True)
    model = masked(**NARROW, mask_patch=32, teacher={"model_name": f"local-dir:{tmp_path}", "pretrained": True})
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        tokens = model.teacher.model.forward_features(model.teacher.view(x))[:, 1:].mT.unflatten(2, (4, 4))
    tokens = nn.functional.layer_norm(tokens.movedim(1, 3), (24,)).movedim(3, 1)
    expected = tokens.unflatten(3, (2, 2)).unflatten(2, (2, 2)).mean((3, 5))
    torch.testing.assert_close(model.targets(x, (2, 2)), expected, rtol=1e-5, atol=1e-5)
    masks = model.draw(x)
    error = (model.eval().predict_hidden(x, masks) - expected).abs().mean(1)[masks[:, 0, ::32, ::32] > 0]
    torch.testing.assert_close(model.loss(x, masks=masks)["loss"], error.mean(), rtol=1e-5, atol=1e-5)
    assert not [name for name in model.state_dict() if "teacher" in name]


def test_features_of_the_running_average() -> None:
    model = masked("soft_pico", **NARROW, mask_patch=32, momentum=0.75).train()
    x, average = torch.randn(2, 3, 64, 64), model.pretraining.average
    assert not any(p.requires_grad for p in average.parameters())
    weight = model.model.norm.weight
    model.loss(x)["loss"].backward()
    weight.data.add_(1)
    model.loss(x)
    torch.testing.assert_close(average.module.norm.weight, weight - 0.75)
    with torch.no_grad():
        expected = nn.functional.layer_norm(last_map(average.module, x).movedim(1, 3), (32,)).movedim(3, 1)
    torch.testing.assert_close(model.targets(x, (2, 2)), expected)
    assert not average.module.training
    with pytest.raises(ValueError, match="momentum"):
        masked("soft_pico", **NARROW, momentum=1.0)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for i in range(9):
        Image.fromarray(np.full((40, 48 + i, 3), 200 + 5 * i, np.uint8)).save(folder / f"{i}.png")
    (folder / "3.png").write_bytes(b"no image")
    return folder


SMALL = dict(size=64, mask_patch=16, batch_size=4, workers=0, lr=1e-2)
OPTIONS = {**NARROW_MODEL, "default_hooks.logger.interval": 1, "default_hooks.checkpoint.max_keep_ckpts": -1}


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    pretrain("soft_pico", photos, out, epochs=8, **SMALL, options=OPTIONS)
    return out


def test_a_run_ends_in_weights_that_load(run: Path, tmp_path: Path) -> None:
    assert (losses := dict(zip(*read_run(run)["loss"][1:], strict=True))).keys() == {*range(1, 17)}
    assert losses[16] < 0.8 * losses[1]
    state = torch.load(run / "epoch_8.pth", weights_only=False)["state_dict"]
    own = {name: value for name, value in state.items() if not name.startswith("pretraining.")}
    model = timm.create_model(f"local-dir:{run}", pretrained=True, num_classes=7).eval()
    assert (model.num_classes, model.pretrained_cfg["input_size"]) == (7, (3, 64, 64))
    detector = MODELS.build(dict(type="SOFT", arch="soft_pico", **NARROW))
    detector.load_weights(torch.load(run / "epoch_8.pth", weights_only=False))
    for found in (model, detector.body):
        loaded = {name.removeprefix("model."): value for name, value in found.state_dict().items()}
        # Positions are resampled for the backbone's 224 pixels.
        both = {name for name in own.keys() & loaded.keys() if found is model or "pos_embed" not in name}
        assert len(both) > 0.9 * len(own)
        assert all(torch.equal(loaded[name], own[name]) for name in both)
    for file in ("model.safetensors", "epoch_8.pth"):
        assert load_into(timm.create_model("soft_pico", num_classes=3, **NARROW), run / file).left_out == []
        options = {**tiny(8, 4, 1, stages=NARROW), "load_from": str(run / file), "optim_wrapper.optimizer.lr": 0.0}
        train(CONFIGS / "demo/soft_pico_shapes.py", work_dir=tmp_path / file, options=options)
        trained = torch.load(tmp_path / file / "epoch_1.pth", weights_only=False)["state_dict"]
        # Training moves the statistics of BatchNorm.
        new = {name for name in own if not torch.equal(trained[name], own[name])}
        assert not {name for name in new if not any(part in name for part in ("pos_embed", "running_", "num_batches"))}
    assert {"config.json", "masked.png", "neighbours.png", "curve.png"} < {path.name for path in run.iterdir()}
    assert f"local-dir:{run}" in (run / "report.md").read_text()


@pytest.mark.parametrize("name", ["test_convnext", VIT[0]])
def test_size_of_the_run(name: str, photos: Path, tmp_path: Path) -> None:
    """A model that takes no size notes it, and the report shows images of this size to one that takes no other."""
    pretrain(name, photos, tmp_path, epochs=1, **SMALL | {"mask_patch": 32}, options={"image_size": (64, 96)})
    assert timm.create_model(f"local-dir:{tmp_path}", pretrained=True).pretrained_cfg["input_size"] == (3, 64, 96)
    assert "64 x 96" in (tmp_path / "report.md").read_text()


def test_a_stopped_run_continues_exactly(run: Path, photos: Path, tmp_path: Path) -> None:
    """Killed after the checkpoint of an epoch: later steps are lost, and done again."""
    for name in ("epoch_3.pth", "pretrain.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    pretrain("soft_pico", photos, tmp_path, epochs=8, **SMALL, options=OPTIONS)
    assert_same_state(run / "epoch_8.pth", tmp_path / "epoch_8.pth", "state_dict", "optimizer")
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match=r"mask_ratio=0.6, got 0.5"):
        pretrain("soft_pico", photos, tmp_path, epochs=8, mask_ratio=0.5, **SMALL, options=OPTIONS)


def test_a_run_with_the_running_average_continues_exactly(photos: Path, tmp_path: Path) -> None:
    # Also where the run averages its weights.
    hooks = [dict(type="EMAEvalHook", momentum=0.3), dict(type="PretrainingReportHook")]
    again = dict(momentum=0.75, **SMALL, options={**OPTIONS, "custom_hooks": hooks, "train_cfg.max_epochs": 2})
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    pretrain("soft_pico", photos, whole, **again)
    # Warm-up is a tenth, an epoch at least, of the epochs that an option sets.
    assert len(load_checkpoint_file(whole / "epoch_2.pth")["param_schedulers"]) == 2
    stopped.mkdir()
    for name in ("epoch_1.pth", "pretrain.json"):
        (stopped / name).write_bytes((whole / name).read_bytes())
    pretrain("soft_pico", photos, stopped, **again)
    assert_same_state(whole / "epoch_2.pth", stopped / "epoch_2.pth", "state_dict", "ema_state_dict", "optimizer")
    assert not [name for name in load_file(whole / "model.safetensors") if "average" in name]
    assert "its own running average" in (whole / "report.md").read_text()


MISTAKES = {"images": "empty", "images ": "8 images", "mask_ratio": 1.5, "mask_patch": 64, "batch_size": 20}


@pytest.mark.parametrize(("name", "value"), MISTAKES.items())
def test_mistakes(name: str, value: Any, photos: Path, tmp_path: Path) -> None:
    """An empty folder, one of files that are no images, and values out of range."""
    for folder, count in (("empty", 0), ("8 images", 8)):
        (tmp_path / folder).mkdir()
        for i in range(count):
            (tmp_path / folder / f"{i}.png").write_bytes(b"no image")
    change = {"images": photos, name.strip(): tmp_path / value if "images" in name else value}
    with pytest.raises(ValueError, match=str(value)):
        pretrain("soft_pico", out=tmp_path / "out", epochs=1, options=OPTIONS, **(SMALL | change))
