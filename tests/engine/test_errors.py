"""What a config breaks, while it is built or at its first use, is a UserError in one sentence."""

from pathlib import Path

import pytest
from mmengine.config import Config
from torch._utils import ExceptionWrapper

from soft_vit.engine import train
from soft_vit.engine.errors import UserError
from soft_vit.engine.models.classifier import TimmProgressClassifier
from soft_vit.engine.run import StartHook, config_errors

DEMO = Path(__file__).parents[2] / "configs" / "demo" / "soft_pico_shapes.py"
TINY = {
    "model.depths": [1, 1, 1, 1],
    "image_size": 32,
    **{f"{split}_dataloader.dataset.length": 8 for split in ("train", "val")},
    "train_dataloader.batch_size": 4,
    "train_cfg.max_epochs": 2,
}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_preprocessor.mean": [1, 2]}, r"fails in the first training step \(RuntimeError: The size of tensor a"),
        (
            {"optim_wrapper.clip_grad.max_nrom": 1},
            r"fails in the first training step \(TypeError: clip_grad_norm_.* 'max_nrom'",
        ),
        (
            {"val_evaluator": [{"type": "ClassificationMetric"}] * 2},
            r"fails in the first validation \(ValueError: There are multiple .* same metric name accuracy/top1",
        ),
    ],
)
def test_first_use_of_what_the_config_says(tmp_path, options, message):
    """Where it happened is not lost: it may be a line of a user's own code."""
    with pytest.raises(UserError, match=message) as caught:
        train(DEMO, work_dir=tmp_path, options={**TINY, **options})
    (file,) = tmp_path.glob("*/traceback.txt")
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert file.read_text().startswith("Traceback")


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"optim_wrapper.optimizer.a": 1}, "optim_wrapper.optimizer"),
        ({"param_scheduler": [{"type": "ConstantLR"}, {"type": "Nope"}]}, "param_scheduler.1"),
        # This error names no type of the config.
        ({"train_dataloader.dataset.pipeline.0.prob": 2}, None),
    ],
)
def test_entry_that_cannot_be_built_is_named(tmp_path, options, place):
    with pytest.raises(UserError, match="cannot be built") as caught:
        train(DEMO, work_dir=tmp_path, options={**TINY, **options})
    assert str(caught.value).startswith(f"The config {DEMO} cannot be built{f' at {place}' if place else ''} (")
    assert "\n" not in str(caught.value)


def test_first_step_of_a_run_that_goes_on(tmp_path, monkeypatch):
    """It begins with a validation, at the end of an epoch."""
    train(DEMO, work_dir=tmp_path, options=TINY)

    def fail(*args, **kwargs):
        raise KeyError("betas")

    monkeypatch.setattr(TimmProgressClassifier, "loss", fail)
    with pytest.raises(UserError, match=r"fails in the first training step \(KeyError: betas"):
        train(DEMO, work_dir=tmp_path, resume="auto", options={**TINY, "train_cfg.max_epochs": 3})


@pytest.mark.parametrize("method", ["loss", "predict"])
def test_later_errors_of_a_run_keep_their_traceback(tmp_path, monkeypatch, method):
    calls, original = [], getattr(TimmProgressClassifier, method)

    def breaks_the_second_time(*args, **kwargs):
        calls.append(args)
        if len(calls) > 1:
            raise RuntimeError("a step of its own")
        return original(*args, **kwargs)

    monkeypatch.setattr(TimmProgressClassifier, method, breaks_the_second_time)
    with pytest.raises(RuntimeError, match="a step of its own"):
        train(DEMO, work_dir=tmp_path, options=TINY)


class TwoArguments(Exception):
    def __init__(self, what, why):
        super().__init__(f"{what} because of {why}")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UserError("Every image is bad; give others."), "Every image is bad; give others."),
        (FileNotFoundError("There is no a.png; give another."), "There is no a.png; give another."),
        (AssertionError(), "The config None cannot be built (AssertionError: AssertionError); correct"),
        (KeyError("img"), "The config None cannot be built (KeyError: 'img'); correct"),
        (ValueError("a\nb"), "The config None cannot be built (ValueError: a); correct"),
        # torch cannot make such a one again.
        (TwoArguments("no", "b"), "The config None cannot be built (RuntimeError: no because of b); correct"),
    ],
)
def test_error_of_a_process_that_loads_data(error, said):
    try:
        raise error
    except Exception:
        handed_over = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(UserError) as caught, config_errors(StartHook(), Config()):
        handed_over.reraise()
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
