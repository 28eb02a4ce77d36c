"""A run: its result, its errors, its steps, and the same by MMEngine's own Runner."""

import itertools
import shutil
from importlib import import_module

import numpy as np
import pytest
import timm
import torch
from engine.runs import DEMO, TWO_STAGES, assert_same_state, tiny, weights
from mmcv.transforms import BaseTransform
from mmengine.config import Config
from mmengine.runner import Runner
from mmpretrain.registry import TRANSFORMS

from soft_vit.engine import TimmTrainClassifier, train
from soft_vit.engine.resume.read import find_newest_checkpoint, load_checkpoint_file

# A run: its result, its errors, and the same by MMEngine's own Runner.


def test_mmengines_own_runner_trains_the_same(tmp_path):
    """Its classes, hooks and schedule all stand in the config; start weights of other classes are fitted as well."""
    hooks = [{"type": "EMAEvalHook", "momentum": 0.1}]
    options = tiny(images=12, batch=4, epochs=2) | {"model.drop_path_rate": 0.2, "custom_hooks": hooks}
    # A Runner does not resolve them.
    del options["image_size"], options["default_hooks.watch"]
    options["load_from"] = str(tmp_path / "start.pth")
    start = timm.create_model("soft_pico", num_classes=12, img_size=32, **TWO_STAGES)
    torch.save(start.state_dict(), options["load_from"])
    ours = train(DEMO, work_dir=tmp_path / "ours", options=options)
    cfg = Config.fromfile(DEMO)
    cfg.merge_from_dict({**options, "work_dir": str(tmp_path / "theirs"), "experiment_name": "theirs"})
    Runner.from_cfg(cfg).train()
    first, second = (tmp_path / name / "epoch_2.pth" for name in ("ours", "theirs"))
    assert_same_state(first, second, "state_dict", "ema_state_dict")
    assert [load_checkpoint_file(path)["meta"]["iter"] for path in (first, second)] == [6, 6]
    assert "accuracy/top1" in ours.metrics


ERRORS = [
    ({"data_preprocessor.mean": [1, 2]}, RuntimeError),
    ({"optim_wrapper.optimizer.lrr": 1}, TypeError),
    ({"param_scheduler": [{"type": "Nope"}]}, KeyError),
]


@pytest.mark.parametrize(("options", "error"), ERRORS)
def test_traceback_is_in_the_log_and_not_on_the_screen(tmp_path, capfd, options, error):
    with pytest.raises(error):
        train(DEMO, work_dir=tmp_path, options=tiny(8, 4, 1) | options)
    (log,) = tmp_path.glob("*/*.log")
    assert "Traceback (most recent call last)" in log.read_text()
    assert "Traceback" not in "".join(capfd.readouterr())


# Precision, accumulation, guard and average together, in runs from a config.


# Epochs of 5 batches.
OPTIONS = tiny(images=10, batch=2, epochs=2, validation=2) | {
    "optim_wrapper.type": "SafeOptimWrapper",
    "custom_hooks": [{"type": "EMAEvalHook", "momentum": 0.3}],
}
SWITCHES = {
    "optim_wrapper.dtype": "float16",
    "optim_wrapper.accumulative_counts": 2,
    "model.with_cp": True,
    "model.channels_last": True,
    "model.drop_path_rate": 0.1,
}


@pytest.fixture
def spoil(monkeypatch):
    """Makes the loss of some of the coming batches NaN."""
    original = TimmTrainClassifier._get_loss

    def spoil_calls(*calls: int) -> None:
        factors = (torch.nan if call in calls else 1 for call in itertools.count())

        def spoilt(self, *args, **kwargs):
            losses = original(self, *args, **kwargs)
            return {**losses, "loss": losses["loss"] * next(factors)}

        monkeypatch.setattr(TimmTrainClassifier, "_get_loss", spoilt)

    return spoil_calls


@pytest.mark.slow
def test_resumed_with_every_switch(tmp_path, spoil):
    """Two epochs at once or one by one: the same weights, averages, moments, loss scale and counts."""
    spoil(3, 7)
    options = {**OPTIONS, **SWITCHES}
    train(DEMO, work_dir=tmp_path / "whole", options=options)
    (tmp_path / "resumed").mkdir()
    shutil.copy(tmp_path / "whole" / "epoch_1.pth", tmp_path / "resumed" / "epoch_1.pth")
    spoil(7 - 5)
    train(DEMO, work_dir=tmp_path / "resumed", resume="auto", options=options)
    whole, resumed = (tmp_path / name / "epoch_2.pth" for name in ("whole", "resumed"))
    assert_same_state(whole, resumed, "state_dict", "ema_state_dict", "optimizer", "param_schedulers")
    optimizer = load_checkpoint_file(whole)["optimizer"]
    # Windows of 2, 2 and 1 batches: 6 steps, of which the spoilt ones, and the first that overflow, halve the scale.
    (steps,) = {int(state["step"]) for state in optimizer["state"].values()}
    assert 0 < steps <= 4
    assert optimizer["loss_scaler"]["scale"] == 2.0 ** (16 - (6 - steps))
    assert optimizer["guard"] == {"skipped": 0, "in_a_row": 0}


def test_run_that_diverges_leaves_its_checkpoint(tmp_path, spoil):
    spoil(*range(7, 10))
    with pytest.raises(ValueError, match="iteration 10"):
        train(DEMO, work_dir=tmp_path, options={**OPTIONS, "optim_wrapper.max_skipped": 3})
    newest = find_newest_checkpoint(tmp_path)
    assert newest.name == "epoch_1.pth"
    assert all(value.isfinite().all() for value in weights(newest).values())
    assert "Iteration 8:" in "".join(path.read_text() for path in tmp_path.glob("*/*.log"))


@TRANSFORMS.register_module()
class Blacken(BaseTransform):
    def transform(self, results: dict) -> dict:
        return {**results, "img": np.zeros_like(np.asarray(results["img"]))}


BLACK = [{"type": "Blacken"}, {"type": "PackInputs"}]


OF_MMPRETRAIN = {"type": "SwitchRecipeHook", "schedule": [{"action_epoch": 2, "train_pipeline": BLACK}]}
OF_MMDET = {"type": "mmdet.PipelineSwitchHook", "switch_epoch": 1, "switch_pipeline": BLACK}


@pytest.mark.slow
@pytest.mark.parametrize("hook", [OF_MMPRETRAIN, OF_MMDET])
def test_hooks_of_mmpretrain_and_mmdet_switch_the_pipeline(tmp_path, monkeypatch, hook):
    if hook["type"].startswith("mmdet"):
        import_module("soft_vit.dense.mmcv_ext")
        pytest.importorskip("mmdet", exc_type=ModuleNotFoundError)
    black, loss = [], TimmTrainClassifier.loss

    def watched(self, inputs, samples):
        black.append(bool(inputs.min() == inputs.max()))
        return loss(self, inputs, samples)

    monkeypatch.setattr(TimmTrainClassifier, "loss", watched)
    options = tiny(images=4, batch=2, epochs=2) | {"custom_hooks": [hook]}
    # Workers that live on from epoch to epoch have a data set of their own.
    loading = {"train_dataloader.num_workers": 1, "train_dataloader.persistent_workers": True}
    train(DEMO, work_dir=tmp_path, options=options | loading, validate=False)
    assert black == [False, False, True, True]
    train(DEMO, work_dir=tmp_path, options=options | {"train_cfg.max_epochs": 3}, resume="auto", validate=False)
    assert black[4:] == [True, True]
