"""The average of the weights: how it moves, what is validated, what a checkpoint holds."""

import copy
import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from engine.runs import DEMO, assert_same, scalars, tiny
from evaluated import MODEL
from torch import nn

from soft_vit.engine import EMAEvalHook, SafeCheckpointHook, SafeOptimWrapper, train
from soft_vit.engine.data.datasets import ShapesDataset
from soft_vit.engine.optim.ema_hook import SmoothedModel, choose_weights
from soft_vit.engine.resume.read import load_checkpoint_file


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
        self.double()
        self.register_buffer("table", torch.zeros(4, dtype=torch.float64))


def states_of(model: nn.Module, steps: int) -> list[dict[str, torch.Tensor]]:
    """Weights as training might leave them after each step."""
    return [
        {name: torch.randn_like(x) if x.is_floating_point() else x + step for name, x in model.state_dict().items()}
        for step in range(steps)
    ]


@pytest.mark.parametrize("momentum", [0.3, 4e-5])
def test_average_is_the_recurrence(momentum):
    model = Net()
    states = states_of(model, 6)
    average = SmoothedModel(model, momentum)
    expected = dict(states[0])
    for step, state in enumerate(states):
        model.load_state_dict(state)
        average.update_parameters(model)
        if step:
            expected = {name: (1 - momentum) * value + momentum * state[name] for name, value in expected.items()}
    # All but parameters and statistics of BatchNorm is that of the last step.
    expected.update({name: states[-1][name] for name in ("table", "1.num_batches_tracked")})
    result = average.module.state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(result[name], value, rtol=1e-12, atol=1e-12, msg=name)
    assert average.steps == 6
    assert set(average.state_dict()) == {"steps", *(f"module.{name}" for name in model.state_dict())}
    assert not average.module.training


def run_hook(spoilt: set[int], iterations: int, **kwargs) -> tuple[EMAEvalHook, list[int]]:
    """Iterations after which the average had moved."""
    model = Net()
    wrapper = SafeOptimWrapper(torch.optim.AdamW(model.parameters(), lr=0.1), **kwargs)
    hook = EMAEvalHook(momentum=0.5)
    hook.src_model, hook.ema_model = model, SmoothedModel(model, 0.5)
    runner = SimpleNamespace(model=model, optim_wrapper=wrapper, iter=0, epoch=0)
    moved = []
    for runner.iter in range(iterations):
        before = copy.deepcopy(hook.ema_model.state_dict())
        with wrapper.optim_context(model):
            loss = model(torch.randn(7, 3, dtype=torch.float64)).square().mean()
        wrapper.update_params(loss * math.nan if runner.iter in spoilt else loss)
        hook.after_train_iter(runner, runner.iter)
        if any(not torch.equal(value, before[name]) for name, value in hook.ema_model.state_dict().items()):
            moved.append(runner.iter)
    return hook, moved


@pytest.mark.parametrize(
    ("spoilt", "counts", "moved"),
    [(set(), 1, [0, 1, 2, 3, 4, 5]), ({1, 4}, 1, [0, 2, 3, 5]), (set(), 2, [1, 3, 5]), ({2}, 2, [1, 5])],
)
def test_average_moves_with_the_optimizer(spoilt, counts, moved):
    hook, iterations = run_hook(spoilt, 6, accumulative_counts=counts)
    assert iterations == moved
    assert hook.ema_model.steps == len(moved)
    assert all(value.isfinite().all() for value in hook.ema_model.state_dict().values())


# Epochs of 4 batches.
OPTIONS = tiny(images=16, batch=4, epochs=3, validation=20) | {
    "train_dataloader.dataset.pipeline": [{"type": "PackInputs"}],
    "default_hooks.checkpoint.save_best": ["accuracy/top1", "ema/accuracy/top1"],
    "optim_wrapper.type": "SafeOptimWrapper",
    # Slow enough to differ from the weights, fast enough to learn something.
    "custom_hooks": [{"type": "EMAEvalHook", "momentum": 0.3}],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    work_dir = tmp_path_factory.mktemp("trained")
    train(DEMO, work_dir=work_dir, options=OPTIONS)
    return work_dir


def accuracy(weights: dict[str, torch.Tensor]) -> float:
    """Of a model on the validation images of the run, without MMEngine."""
    model = timm.create_model("soft_pico", **MODEL).eval()
    model.load_state_dict(weights)
    data = ShapesDataset(length=20, split="test", size=32)
    infos = [data.get_data_info(index) for index in range(20)]
    images = torch.stack([torch.from_numpy(info["img"]).permute(2, 0, 1) for info in infos])
    with torch.no_grad():
        decisions = model((images - 127.5) / 64).argmax(dim=1)
    return 100 * (decisions == torch.tensor([info["gt_label"] for info in infos])).float().mean().item()


def test_run_validates_and_keeps_both(trained):
    entries = [entry for entry in scalars(trained) if "accuracy/top1" in entry]
    assert any(entry["accuracy/top1"] != entry["ema/accuracy/top1"] for entry in entries)
    for epoch, entry in enumerate(entries, 1):
        for ema, name in ((False, "accuracy/top1"), (True, "ema/accuracy/top1")):
            checkpoint = load_checkpoint_file(trained / f"epoch_{epoch}.pth")
            choose_weights(checkpoint, ema)
            assert entry[name] == pytest.approx(accuracy(checkpoint["state_dict"]))
    assert len(entries) == 3
    best = sorted(path.name for path in trained.glob("best_*.pth"))
    assert [name[:-5] for name in best] == ["best_accuracy_top1_epoch_", "best_ema_accuracy_top1_epoch_"]
    assert "ema_state_dict" in load_checkpoint_file(trained / best[1])


def test_timm_finds_the_average_in_a_checkpoint(trained):
    plain, averaged = (load_checkpoint_file(trained / "epoch_3.pth") for _ in range(2))
    assert int(plain["ema_state_dict"]["steps"]) == 12
    choose_weights(plain, ema=False)
    choose_weights(averaged, ema=True)
    overlay = {"file": str(trained / "epoch_3.pth"), "num_classes": 10}
    found = timm.create_model("soft_pico", **MODEL, pretrained=True, pretrained_cfg_overlay=overlay).state_dict()
    assert_same(found, averaged["state_dict"])
    assert found.keys() == plain["state_dict"].keys()
    for name, value in found.items():
        assert not value.is_floating_point() or not torch.equal(value, plain["state_dict"][name]), name


def test_checkpoint_with_one_set():
    checkpoint = {"state_dict": {"x": torch.ones(1)}}
    choose_weights(checkpoint, ema=False)
    assert checkpoint["state_dict"]["x"] == 1
    with pytest.raises(ValueError, match="averaged weights"):
        choose_weights(checkpoint, ema=True)


@pytest.mark.parametrize(
    ("part", "content"), [("state_dict", math.nan), ("ema_state_dict", math.inf), ("optimizer", -math.inf), (None, 1.0)]
)
def test_checkpoint_that_is_not_finite_is_not_written(part, content):
    checkpoint = {"state_dict": {}, part: {"state": {0: torch.tensor([1.0, content])}}}
    with pytest.raises(ValueError, match=f"{part}.state.0") if part else nullcontext():
        SafeCheckpointHook(interval=1).before_save_checkpoint(SimpleNamespace(model=Net()), checkpoint)
