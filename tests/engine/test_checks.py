"""What does not fit is refused before the first step."""

import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.optim import LinearLR, OneCycleLR

from soft_vit.engine import UserError, train
from soft_vit.engine.checks import RunChecksHook

TEN = SimpleNamespace(num_classes=10)


@pytest.mark.parametrize(
    ("classes", "model", "message"),
    [
        (10, {"model": TEN}, None),
        (10, {"model": SimpleNamespace(num_classes=1000)}, None),
        (11, {"model": TEN}, "11 classes and the model has 10; set num_classes to 11"),
        (11, {"head": TEN}, "11 classes and the model has 10"),
        (11, {}, None),
        (None, {"model": SimpleNamespace(num_classes=1)}, None),
        (10, {"model": TEN, "data_preprocessor": SimpleNamespace(mixing=None)}, None),
        (10, {"model": TEN, "data_preprocessor": SimpleNamespace(mixing=TEN)}, None),
        (
            9,
            {"model": SimpleNamespace(num_classes=9), "data_preprocessor": SimpleNamespace(mixing=TEN)},
            "num_classes to 9",
        ),
    ],
)
def test_classes_fit_the_head(classes, model, message):
    metainfo = {} if classes is None else {"classes": tuple(map(str, range(classes)))}
    said = []
    run = SimpleNamespace(
        train_dataloader=SimpleNamespace(dataset=SimpleNamespace(metainfo=metainfo)),
        model=SimpleNamespace(**model),
        param_schedulers=None,
        logger=SimpleNamespace(info=said.append),
    )
    with pytest.raises(UserError, match=message) if message else nullcontext():
        RunChecksHook().before_train(run)
    assert len(said) == (classes is not None)


@pytest.mark.parametrize("by_epoch", [True, False])
@pytest.mark.parametrize(
    ("steps", "span"), [(3, {}), (4, {}), (5, {}), (2, {"begin": 3}), (2, {"end": 3}), (2, {"end": 4}), (1, {"end": 3})]
)
def test_ends_before_the_run(steps, span, by_epoch):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    options = {"total_steps": steps, "eta_max": 1.0, "by_epoch": by_epoch, "end": 5, **span}
    schedulers = [LinearLR(optimizer), OneCycleLR(optimizer, **options)]
    epochs, iterations = (5, math.inf) if by_epoch else (math.inf, 5)
    run = SimpleNamespace(
        param_schedulers={"network": schedulers},
        max_epochs=epochs,
        max_iters=iterations,
        train_dataloader=SimpleNamespace(dataset=None),
        model=None,
    )
    refused = None
    try:
        RunChecksHook().before_train(run)
    except UserError as error:
        refused = error
    trial = OneCycleLR(optimizer, **options)
    try:
        for _ in range(5):
            optimizer.step()
            trial.step()
    except ValueError:
        assert f"OneCycleLR of param_scheduler has {steps} steps" in str(refused)
    else:
        assert refused is None


def test_a_run_with_one_does_not_begin(tmp_path):
    options = {"train_dataloader.dataset.length": 64, "param_scheduler": [{"type": "OneCycleLR", "total_steps": 1}]}
    with pytest.raises(UserError, match="OneCycleLR of param_scheduler has 1 steps, and the run takes 4"):
        train(
            Path(__file__).parents[2] / "configs" / "demo" / "soft_pico_shapes.py", work_dir=tmp_path, options=options
        )
    assert not list(tmp_path.glob("*.pth"))
