"""A checkpoint of another model is named as such."""

from types import SimpleNamespace

import pytest
import timm
import torch
from torch import nn

from soft_vit.engine import CheckpointMatchHook, UserError
from soft_vit.engine.checkpoints.checkpoint_match import require_match
from soft_vit.weights.reading import NOTES_KEY

MODEL = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def state(**changes):
    entries = {**MODEL.state_dict(), **changes}
    return {name: value for name, value in entries.items() if value is not None}


def check(given, exact):
    runner = SimpleNamespace(model=MODEL)
    require_match(runner, {"state_dict": given}, exact)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    "given",
    [state(), {f"module.{name}": value for name, value in state().items()}, state(**{"1.num_batches_tracked": None})],
    ids=["same", "from DDP", "without a counter"],
)
def test_fits(given, exact):
    check(given, exact)


PARTLY = [
    (state(**{"0.weight": None}), "1 parameters are missing, such as 0.weight"),
    (state(extra=torch.ones(1)), "1 are unknown to the model, such as extra"),
    (state(**{"0.bias": torch.ones(7)}), r"1 have another shape, such as 0.bias with \(7,\) instead of \(3,\)"),
]


@pytest.mark.parametrize(("given", "message"), PARTLY, ids=["missing", "unknown", "shape"])
def test_partly_fitting(given, message):
    with pytest.raises(ValueError, match=message):
        check(given, exact=True)
    check(given, exact=False)


def test_a_checkpoint_that_notes_another_model_with_the_same_parameters():
    network = timm.create_model("soft_norm_pico", img_size=64)
    runner = SimpleNamespace(model=Classifier(network))
    checkpoint = {"state_dict": dict(runner.model.state_dict()), "meta": {NOTES_KEY: {"model": "soft_norm_pico"}}}
    CheckpointMatchHook().after_load_checkpoint(runner, checkpoint)
    checkpoint["meta"][NOTES_KEY]["model"] = "soft_pico"
    with pytest.raises(UserError, match="create soft_pico for it"):
        CheckpointMatchHook().after_load_checkpoint(runner, checkpoint)


class Classifier(nn.Module):
    """As mmpretrain's TimmClassifier: parameters have the names of the timm model inside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def state_dict(self, *args, **kwargs):
        return self.model.state_dict()


def test_nothing_fits():
    with pytest.raises(ValueError, match="belongs to another model"):
        check({"conv.weight": torch.ones(1)}, exact=False)
