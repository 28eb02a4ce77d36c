"""Errors of a run: they reach the caller as they are, and their traceback the run's log."""

from pathlib import Path

import pytest

from soft_vit.engine import train
from soft_vit.engine.models.classifier import TimmProgressClassifier

DEMO = Path(__file__).parents[2] / "configs" / "demo" / "soft_pico_shapes.py"
TINY = {
    "model.depths": [1, 1, 1, 1],
    "image_size": 32,
    **{f"{split}_dataloader.dataset.length": 8 for split in ("train", "val")},
    "train_dataloader.batch_size": 4,
    "train_cfg.max_epochs": 2,
}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"data_preprocessor.mean": [1, 2]}, RuntimeError),
        ({"optim_wrapper.optimizer.lrr": 1}, TypeError),
        ({"param_scheduler": [{"type": "Nope"}]}, KeyError),
        ({"val_evaluator": [{"type": "ClassificationMetric"}] * 2}, ValueError),
    ],
)
def test_traceback_is_in_the_log(tmp_path, options, error):
    with pytest.raises(error):
        train(DEMO, work_dir=tmp_path, options={**TINY, **options})
    (log,) = tmp_path.glob("*/*.log")
    assert "Traceback (most recent call last)" in log.read_text()


def test_traceback_is_not_on_the_screen(tmp_path, monkeypatch, capfd):
    def fail(*args, **kwargs):
        raise ValueError("a step of its own")

    monkeypatch.setattr(TimmProgressClassifier, "loss", fail)
    with pytest.raises(ValueError, match="a step of its own"):
        train(DEMO, work_dir=tmp_path, options=TINY)
    assert "Traceback" not in "".join(capfd.readouterr())
