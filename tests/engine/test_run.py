"""A run: its result, its errors, and the same by MMEngine's own Runner."""

import pytest
import timm
import torch
from engine.runs import DEMO, assert_same_state, tiny
from evaluated import MODEL
from mmengine.config import Config
from mmengine.runner import Runner

from soft_vit.engine import train
from soft_vit.engine.resume.read import load_checkpoint_file


def test_mmengines_own_runner_trains_the_same(tmp_path):
    """Its classes, hooks and schedule all stand in the config; start weights of other classes are fitted as well."""
    options = tiny(images=12, batch=4, epochs=2) | {
        "model.drop_path_rate": 0.2,
        "custom_hooks": [{"type": "EMAEvalHook", "momentum": 0.1}],
    }
    # A Runner does not resolve them.
    del options["image_size"], options["default_hooks.watch"]
    options["load_from"] = str(tmp_path / "start.pth")
    torch.save(timm.create_model("soft_pico", **MODEL | {"num_classes": 12}).state_dict(), options["load_from"])
    ours = train(DEMO, work_dir=tmp_path / "ours", options=options)
    cfg = Config.fromfile(DEMO)
    cfg.merge_from_dict({**options, "work_dir": str(tmp_path / "theirs"), "experiment_name": "theirs"})
    Runner.from_cfg(cfg).train()
    first, second = (tmp_path / name / "epoch_2.pth" for name in ("ours", "theirs"))
    assert_same_state(first, second, "state_dict", "ema_state_dict")
    assert [load_checkpoint_file(path)["meta"]["iter"] for path in (first, second)] == [6, 6]
    assert ours.top1 is not None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"data_preprocessor.mean": [1, 2]}, RuntimeError),
        ({"optim_wrapper.optimizer.lrr": 1}, TypeError),
        ({"param_scheduler": [{"type": "Nope"}]}, KeyError),
    ],
)
def test_traceback_is_in_the_log_and_not_on_the_screen(tmp_path, capfd, options, error):
    with pytest.raises(error):
        train(DEMO, work_dir=tmp_path, options=tiny(8, 4, 1) | options)
    (log,) = tmp_path.glob("*/*.log")
    assert "Traceback (most recent call last)" in log.read_text()
    assert "Traceback" not in "".join(capfd.readouterr())
