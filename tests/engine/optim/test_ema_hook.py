"""The average of the weights: how it moves, what is validated, what a checkpoint holds."""

import copy
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from engine.runs import DEMO, scalars, tiny
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


def trajectory(steps: int) -> list[dict[str, torch.Tensor]]:
    """Weights as training might leave them after each step."""
    generator = torch.Generator().manual_seed(2)
    state = Net().state_dict()
    return [
        {
            name: torch.randn(value.shape, generator=generator, dtype=value.dtype)
            if value.is_floating_point()
            else torch.tensor(step)
            for name, value in state.items()
        }
        for step in range(1, steps + 1)
    ]


@pytest.mark.parametrize("momentum", [0.3, 4e-5])
def test_average_is_the_recurrence(momentum):
    states = trajectory(6)
    model = Net()
    average = SmoothedModel(model, momentum)
    expected = dict(states[0])
    for step, state in enumerate(states):
        model.load_state_dict(state)
        average.update_parameters(model)
        if step:
            expected = {name: (1 - momentum) * value + momentum * state[name] for name, value in expected.items()}
    # What is no parameter and no statistic of BatchNorm is that of the last step.
    expected.update({name: states[-1][name] for name in ("table", "1.num_batches_tracked")})
    result = average.module.state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(result[name], value, rtol=1e-12, atol=1e-12, msg=name)
    assert average.steps == 6


def test_model_is_no_part_of_its_average():
    model = Net()
    average = SmoothedModel(model)
    average.update_parameters(model)
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
    [
        (set(), 1, [0, 1, 2, 3, 4, 5]),
        ({1, 4}, 1, [0, 2, 3, 5]),
        (set(), 2, [1, 3, 5]),
        ({2}, 2, [1, 5]),
    ],
)
def test_average_moves_with_the_optimizer(spoilt, counts, moved):
    hook, iterations = run_hook(spoilt, 6, accumulative_counts=counts)
    assert iterations == moved
    assert hook.ema_model.steps == len(moved)
    assert all(value.isfinite().all() for value in hook.ema_model.state_dict().values())


@pytest.mark.parametrize("name", ["data_samples", "labels"])
def test_average_sees_any_kind_of_batch(name):
    hook, seen = EMAEvalHook(), []
    hook.ema_model = SimpleNamespace(module=SimpleNamespace(val_step=lambda batch: batch[name]))
    hook._evaluator = SimpleNamespace(process=lambda data_samples, data_batch: seen.extend(data_samples))
    batch = {"inputs": torch.zeros(2), name: [torch.zeros(1), torch.ones(1)]}
    hook.after_val_iter(SimpleNamespace(val_loop=SimpleNamespace(fp16=False)), 0, batch)
    assert seen == batch[name]


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
    model = timm.create_model("soft_pico", num_classes=10, img_size=32, depths=[1, 1, 1, 1]).eval()
    model.load_state_dict(weights)
    data = ShapesDataset(length=20, split="test", size=32)
    infos = [data.get_data_info(index) for index in range(20)]
    images = torch.stack([torch.from_numpy(info["img"]).permute(2, 0, 1) for info in infos])
    with torch.no_grad():
        decisions = model((images - 127.5) / 64).argmax(dim=1)
    return 100 * (decisions == torch.tensor([info["gt_label"] for info in infos])).float().mean().item()


def test_validation_reports_both(trained):
    entries = [entry for entry in scalars(trained) if "accuracy/top1" in entry]
    assert any(entry["accuracy/top1"] != entry["ema/accuracy/top1"] for entry in entries)
    for epoch, entry in enumerate(entries, 1):
        for ema, name in ((False, "accuracy/top1"), (True, "ema/accuracy/top1")):
            checkpoint = load_checkpoint_file(trained / f"epoch_{epoch}.pth")
            choose_weights(checkpoint, ema)
            assert entry[name] == pytest.approx(accuracy(checkpoint["state_dict"]))
    assert len(entries) == 3
    assert "ema/accuracy/top1: " in next(trained.glob("*/*.log")).read_text()


def test_checkpoint_holds_both(trained):
    plain, averaged = (load_checkpoint_file(trained / "epoch_3.pth") for _ in range(2))
    assert int(plain["ema_state_dict"]["steps"]) == 12
    choose_weights(plain, ema=False)
    choose_weights(averaged, ema=True)
    assert plain["state_dict"].keys() == averaged["state_dict"].keys()
    # timm and MMEngine find the averaged ones.
    model = timm.create_model(
        "soft_pico",
        num_classes=10,
        img_size=32,
        depths=[1, 1, 1, 1],
        pretrained=True,
        pretrained_cfg_overlay={"file": str(trained / "epoch_3.pth"), "num_classes": 10},
    )
    for name, value in model.state_dict().items():
        assert torch.equal(value, averaged["state_dict"][name]), name
        if value.is_floating_point():
            assert not torch.equal(value, plain["state_dict"][name]), name


def test_best_checkpoint_by_either(trained):
    names = sorted(path.name for path in trained.glob("best_*.pth"))
    assert [name[:-5] for name in names] == ["best_accuracy_top1_epoch_", "best_ema_accuracy_top1_epoch_"]
    assert "ema_state_dict" in load_checkpoint_file(trained / names[1])


def test_checkpoint_with_one_set():
    checkpoint = {"state_dict": {"x": torch.ones(1)}}
    choose_weights(checkpoint, ema=False)
    assert checkpoint["state_dict"]["x"] == 1
    with pytest.raises(ValueError, match="averaged weights"):
        choose_weights(checkpoint, ema=True)


@pytest.mark.parametrize(
    ("checkpoint", "named"),
    [
        ({"state_dict": {"a.weight": torch.tensor([1.0, math.nan])}}, "state_dict.a.weight"),
        ({"state_dict": {"a": torch.ones(1)}, "ema_state_dict": {"module.a": torch.tensor(math.inf)}}, "module.a"),
        ({"state_dict": {}, "optimizer": {"state": {0: {"exp_avg": torch.tensor(-math.inf)}}}}, "state.0.exp_avg"),
        ({"state_dict": {"a": torch.ones(2), "n": torch.tensor(3)}, "optimizer": {"param_groups": [1]}}, None),
    ],
)
def test_checkpoint_that_is_not_finite_is_not_written(checkpoint, named):
    hook, runner = SafeCheckpointHook(interval=1), SimpleNamespace(model=Net())
    if named is None:
        hook.before_save_checkpoint(runner, checkpoint)
    else:
        with pytest.raises(ValueError, match=named):
            hook.before_save_checkpoint(runner, checkpoint)
