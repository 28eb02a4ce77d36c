"""Guarded steps, and the average of the weights that follows them."""

import copy
import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from distributed.processes import call_in_ranks
from engine.runs import DEMO, NARROW, assert_same, differences, scalars, tiny
from evaluated import MODEL
from mmengine.logging import MessageHub
from torch import nn

import soft_vit  # noqa: F401  registers the models
from soft_vit.engine import EMAEvalHook, SafeCheckpointHook, SafeOptimWrapper, train
from soft_vit.engine.data.datasets import ShapesDataset
from soft_vit.engine.optim.ema_hook import SmoothedModel, choose_weights
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.layers.attention.vq import VQAttention
from soft_vit.weights.read import unwrap_state_dict

# Mixed precision, accumulation, clipping, and steps that are left out.


class Net(nn.Sequential):
    """A little of everything that a step changes, in float64."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))
        self.register_buffer("table", torch.zeros(4))
        self.to(dtype)


def build(model: nn.Module, lr: float = 0.1, **kwargs) -> SafeOptimWrapper:
    return SafeOptimWrapper(optimizer=torch.optim.AdamW(model.parameters(), lr=lr), **kwargs)


def batches(count: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return list(torch.randn(count, 7, 3, generator=torch.Generator().manual_seed(1), dtype=dtype))


def train_steps(model: nn.Module, optim: SafeOptimWrapper, inputs: list, spoil: dict | None = None) -> list:
    """Whether each batch ended in a step. spoil: by position, what takes the loss to its place."""
    stepped = []
    for position, x in enumerate(inputs):
        with optim.optim_context(model):
            loss = model(x).float().square().mean()
        optim.update_params((spoil or {}).get(position, lambda loss: loss)(loss))
        stepped.append(optim.stepped)
    return stepped


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    """A message hub of its own for each test, not that of a run in another one."""
    hub = MessageHub("optim_wrapper")
    monkeypatch.setattr(MessageHub, "get_current_instance", lambda: hub)


@pytest.fixture
def log(monkeypatch) -> list[str]:
    lines = []
    monkeypatch.setattr("soft_vit.engine.optim.optim_wrapper.print_log", lambda line, *_: lines.append(line))
    return lines


def everything(model: nn.Module, optim: SafeOptimWrapper) -> dict[str, torch.Tensor]:
    """Copies of all that a step may change."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for index, entry in optim.optimizer.state_dict()["state"].items():
        state.update({f"{index}.{name}": value.clone() for name, value in entry.items()})
    return state


# Precision


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_forward_runs_in(dtype):
    model = nn.Linear(4, 4)
    optim = build(model, dtype=dtype, clip_grad={"max_norm": 1.0})
    with optim.optim_context(model):
        output = model(torch.ones(2, 4))
    assert output.dtype == getattr(torch, dtype)
    before = model.weight.detach().clone()
    optim.update_params(output.float().mean())
    assert model.weight.dtype == torch.float32
    assert not torch.equal(before, model.weight)
    assert model(torch.ones(2, 4)).dtype == torch.float32


# The guard

SPOILT = {
    "infinite loss": lambda loss: loss * math.inf,
    "NaN loss": lambda loss: loss * math.nan,
    # The derivative of the square root at 0.
    "gradient alone": lambda loss: loss + (loss * 0).sqrt(),
    "loss alone": lambda loss: loss + math.inf,
}


PLACES = [
    (1, 3, 1, [True, False, True]),
    # Anywhere in a window; the window after it is another one.
    (3, 9, 3, [False, False, True, False, False, False, False, False, True]),
    (3, 9, 4, [False, False, True, False, False, False, False, False, True]),
]


@pytest.mark.parametrize("kind", SPOILT)
@pytest.mark.parametrize("clip", [None, {"max_norm": 0.1}, {"type": "value", "clip_value": 0.01}])
@pytest.mark.parametrize(("accumulative_counts", "inputs", "spoilt", "steps"), PLACES)
def test_spoilt_step_changes_nothing(kind, clip, accumulative_counts, inputs, spoilt, steps):
    data, window = batches(inputs), slice(accumulative_counts, 2 * accumulative_counts)
    model = Net()
    optim = build(model, clip_grad=copy.deepcopy(clip), accumulative_counts=accumulative_counts)
    stepped = train_steps(model, optim, data[: window.start])
    before = everything(model, optim)
    stepped += train_steps(model, optim, data[window], {spoilt - window.start: SPOILT[kind]})
    assert_same(before, everything(model, optim))
    assert all(p.grad is None for p in model.parameters())
    stepped += train_steps(model, optim, data[window.stop :])
    assert stepped == steps
    assert optim.skipped == 1


class Codes(VQAttention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x, (1, 7))


@pytest.mark.parametrize("counts", [1, 2])
def test_skipped_step_restores_every_buffer(counts):
    """Codes are averages over keys, which one infinite input would spoil for ever."""
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(7), Codes(8, 2, num_codes=4)).double()
    optim, data = build(model, accumulative_counts=counts), [x[None] for x in batches(6)]
    train_steps(model, optim, data[:2])
    before = everything(model, optim)
    data[3] = data[3].index_fill(1, torch.tensor(2), math.inf)
    assert train_steps(model, optim, data[4 - counts : 4]) == [False] * counts
    assert_same(before, everything(model, optim))
    assert train_steps(model, optim, data[4:])[-1]
    assert differences(before, everything(model, optim))
    assert all(value.isfinite().all() for value in model.state_dict().values())


# A good step begins the count anew.
ROWS = [([0, 1, 2], 3), ([0, 1, 3, 4, 6, 7, 8], 9), ([0, 2, 4, 6, 8], None)]


@pytest.mark.parametrize(("spoilt", "ends_at"), ROWS)
def test_run_ends_after_a_row(spoilt, ends_at, log):
    model = Net()
    optim = build(model, max_skipped=3)
    with pytest.raises(ValueError, match=f"iteration {ends_at}") if ends_at else nullcontext():
        train_steps(model, optim, batches(10), dict.fromkeys(spoilt, SPOILT["NaN loss"]))
    assert optim.skipped == len(spoilt)
    assert [line.split(":")[0] for line in log] == [f"Iteration {position + 1}" for position in spoilt]
    assert all(value.isfinite().all() for value in model.state_dict().values())
    if ends_at is None:
        assert optim.message_hub.get_scalar("train/skipped_steps").current() == len(spoilt)
        assert np.isfinite(optim.message_hub.get_scalar("train/grad_norm").data[0]).all()


# float16


def overflow(loss: torch.Tensor) -> torch.Tensor:
    """A gradient that overflows in fp32 at any loss scale above 1, and not without."""
    return loss * 1e38


# The scale begins at 2^16: 16 overflows to reach 1, and only those below it count.
OVERFLOWS = [(3, 0, 2.0**13), (16, 0, 1.0), (18, 2, 1.0)]


@pytest.mark.parametrize(("steps", "skipped", "scale"), OVERFLOWS)
def test_overflow_lowers_the_scale(steps, skipped, scale):
    model = Net(torch.float32)
    optim = build(model, dtype="float16")
    before = everything(model, optim)
    spoil = dict.fromkeys(range(steps), lambda loss: overflow(loss) * 1e3)
    assert train_steps(model, optim, batches(steps, torch.float32), spoil) == [False] * steps
    assert_same(before, everything(model, optim))
    assert optim.skipped == skipped
    assert optim.state_dict()["loss_scaler"]["scale"] == scale
    # The next good step is taken.
    assert train_steps(model, optim, batches(1, torch.float32)) == [True]


# Each gradient is clipped; none is, or would be with its scale; clipping is off.
@pytest.mark.parametrize("max_norm", [1e-3, 30.0, math.inf])
@pytest.mark.parametrize(("dtype", "loss_scale"), [("float32", 1.0), ("float16", 1.0), ("float16", 1024.0)])
def test_clipping_is_torchs_without_the_scale(dtype, loss_scale, max_norm):
    model = Net(torch.float32)
    twin = copy.deepcopy(model)
    optim = build(model, dtype=dtype, clip_grad={"max_norm": max_norm})
    optim._scaler._init_scale = loss_scale
    (x,) = batches(1, torch.float32)
    train_steps(model, optim, [x])
    twin(x).square().mean().backward()
    nn.utils.clip_grad_norm_(twin.parameters(), max_norm)
    expected = 0.1 * twin[0].weight.grad
    # Half a unit in the last place of fp16, 2^-11, in each of few operations.
    error = 2**-8 if dtype == "float16" else 2**-22
    found = optim.optimizer.state_dict()["state"][0]["exp_avg"]
    torch.testing.assert_close(found, expected, rtol=error, atol=error * expected.abs().max().item())


# Resuming


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("stop", [2, 4])
def test_resumed_run_is_the_same(dtype, stop, tmp_path):
    data = batches(7, torch.float32)
    # An overflow before either stop, and a NaN that counts, so that scale, growth and counters all differ from new.
    spoil = {0: lambda loss: overflow(loss) * 1e3, 3: SPOILT["NaN loss"], 5: SPOILT["NaN loss"]}
    model = Net(torch.float32)
    part = copy.deepcopy(model)
    optim = build(model, dtype=dtype)
    train_steps(model, optim, data, spoil)

    part_optim = build(part, dtype=dtype)
    train_steps(part, part_optim, data[:stop], spoil)
    torch.save({"model": part.state_dict(), "optim": part_optim.state_dict()}, tmp_path / "half.pth")
    saved = torch.load(tmp_path / "half.pth", weights_only=True)
    resumed = Net(torch.float32)
    resumed.load_state_dict(saved["model"])
    resumed_optim = build(resumed, dtype=dtype)
    resumed_optim.load_state_dict(saved["optim"])
    train_steps(resumed, resumed_optim, data[stop:], {position - stop: loss for position, loss in spoil.items()})
    assert_same(everything(model, optim), everything(resumed, resumed_optim))
    for key in ("guard", "loss_scaler"):
        assert optim.state_dict().get(key) == resumed_optim.state_dict().get(key)


def test_state_of_another_wrapper():
    """A run may change its precision, or come from MMEngine's own wrapper."""
    model = Net(torch.float32)
    scaled, plain = build(model, dtype="float16"), build(model)
    train_steps(model, scaled, batches(1, torch.float32))
    plain.load_state_dict(scaled.state_dict())
    scaled.load_state_dict({name: value for name, value in plain.state_dict().items() if name != "guard"})
    assert scaled.skipped == 0


# Accumulation


WINDOWS = [
    (1, 4, 1, [1, 1, 1, 1]),
    (2, 4, 2, [2, 2, 2, 2]),
    # The last window of an epoch is shorter.
    (2, 5, 2, [2, 2, 1, 2, 2, 1]),
    (2, 4, 3, [3, 1, 3, 1]),
    (3, 2, 8, [2, 2, 2]),
]


@pytest.mark.parametrize(("epochs", "length", "counts", "windows"), WINDOWS)
def test_windows_of_accumulation(epochs, length, counts, windows):
    """Each step is one with the mean gradient of its window, to rounding."""
    total = epochs * length
    data = batches(total)
    model = nn.Linear(3, 2).double()
    twin = copy.deepcopy(model)
    optim = SafeOptimWrapper(torch.optim.SGD(model.parameters(), lr=0.3), accumulative_counts=counts)
    optim.message_hub.update_info("max_epochs", epochs)
    optim.initialize_count_status(model, 0, total)
    synced = []
    for x in data:
        synced.append(optim.should_sync())
        with optim.optim_context(model):
            loss = model(x).square().mean()
        optim.update_params(loss)
        assert optim.stepped == synced[-1]
    assert [end for end in range(total) if synced[end]] == [sum(windows[: n + 1]) - 1 for n in range(len(windows))]

    sgd = torch.optim.SGD(twin.parameters(), lr=0.3)
    for n, size in enumerate(windows):
        begin = sum(windows[:n])
        torch.stack([twin(x).square().mean() for x in data[begin : begin + size]]).mean().backward()
        sgd.step()
        sgd.zero_grad()
    torch.testing.assert_close(model.weight, twin.weight, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("start", "windows"), [(4, [2, 3]), (7, [2]), (6, [3])])
def test_a_window_that_is_resumed_averages_over_the_rest_of_it(start, windows):
    """Of windows of three iterations in a run of 9."""
    optim = SafeOptimWrapper(torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.3), accumulative_counts=3)
    optim.initialize_count_status(nn.Identity(), start, 9)
    scales = []
    for _ in range(start, 9):
        scales.append(float(1 / optim.scale_loss(torch.ones(()))))
        optim.backward(torch.zeros((), requires_grad=True))
    assert scales == pytest.approx([size for size in windows for _ in range(size)])


# Several processes


def one_rank(rank: int) -> dict:
    """DDP in each precision."""
    data = [x + rank for x in batches(6, torch.float32)]
    results = {}
    for dtype in ("float32", "float16"):
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)))
        optim = build(model, dtype=dtype, clip_grad={"max_norm": 0.1}, accumulative_counts=2)
        optim._scaler._init_scale = 1.0
        stepped = train_steps(model, optim, data, {3: SPOILT["NaN loss"]} if rank == 1 else {})
        results[dtype] = {"stepped": stepped, "state": everything(model, optim)}
    return results


def test_ranks_skip_together(tmp_path):
    first, second = call_in_ranks(2, tmp_path, one_rank)
    assert differences(first, second) == []
    for result in first.values():
        assert result["stepped"] == [False, True, False, False, False, True]


# The average of the weights: how it moves, what is validated, what a checkpoint holds.


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


MOVES = [(set(), 1, [0, 1, 2, 3, 4, 5]), ({1, 4}, 1, [0, 2, 3, 5]), (set(), 2, [1, 3, 5]), ({2}, 2, [1, 5])]


@pytest.mark.parametrize(("spoilt", "counts", "moved"), MOVES)
def test_average_moves_with_the_optimizer(spoilt, counts, moved):
    model, after = Net(), []
    wrapper = build(model, accumulative_counts=counts)
    hook = EMAEvalHook(momentum=0.5)
    hook.src_model, hook.ema_model = model, SmoothedModel(model, 0.5)
    runner = SimpleNamespace(model=model, optim_wrapper=wrapper, iter=0, epoch=0)
    for runner.iter, x in enumerate(batches(6)):
        before = copy.deepcopy(hook.ema_model.state_dict())
        train_steps(model, wrapper, [x], {0: SPOILT["NaN loss"]} if runner.iter in spoilt else None)
        hook.after_train_iter(runner, runner.iter)
        if differences(before, hook.ema_model.state_dict()):
            after.append(runner.iter)
    assert after == moved
    assert hook.ema_model.steps == len(moved)
    assert all(value.isfinite().all() for value in hook.ema_model.state_dict().values())


# Epochs of 4 batches.
OPTIONS = tiny(images=16, batch=4, epochs=3, validation=20, stages=NARROW) | {
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


def test_a_run_resumed_without_the_hook_goes_on_from_its_own_weights(trained, tmp_path):
    last = scalars(trained)[-1]
    assert last["cross_entropy"] != last["ema/cross_entropy"]
    options = {**OPTIONS, "custom_hooks": [], "default_hooks.checkpoint.save_best": None}
    resumed = train(DEMO, work_dir=tmp_path, options=options, resume=str(trained / "epoch_3.pth"))
    assert resumed.metrics["cross_entropy"] == pytest.approx(last["cross_entropy"])


def test_checkpoint_with_one_set():
    checkpoint = {"state_dict": {"x": torch.ones(1)}}
    choose_weights(checkpoint, ema=False)
    assert checkpoint["state_dict"]["x"] == 1
    with pytest.raises(ValueError, match="averaged weights"):
        choose_weights(checkpoint, ema=True)
    # In timm's layout, which is read where it is.
    checkpoint["state_dict_ema"] = {"x": torch.zeros(1)}
    choose_weights(checkpoint, ema=True)
    assert unwrap_state_dict(checkpoint)["x"] == 0
    choose_weights(checkpoint, ema=False)
    assert unwrap_state_dict(checkpoint)["x"] == 1


CONTENTS = [("state_dict", math.nan), ("ema_state_dict", math.inf), ("optimizer", -math.inf), (None, 1.0)]


@pytest.mark.parametrize(("part", "content"), CONTENTS)
def test_checkpoint_that_is_not_finite_is_not_written(part, content):
    checkpoint = {"state_dict": {}, part: {"state": {0: torch.tensor([1.0, content])}}}
    with pytest.raises(ValueError, match=f"{part}.state.0") if part else nullcontext():
        save(1, checkpoint)


def save(count: int, checkpoint: dict) -> None:
    """Call all of a run's hooks that save."""
    run = SimpleNamespace(model=Net(), hooks=[SafeCheckpointHook(interval=1) for _ in range(count)])
    for hook in run.hooks:
        hook.before_save_checkpoint(run, checkpoint)


def test_two_hooks_that_save_look_at_a_checkpoint_once(monkeypatch):
    looks = []
    monkeypatch.setattr("soft_vit.engine.hooks.checkpoint.first_not_finite", looks.append)
    save(2, {"state_dict": {}})
    assert len(looks) == 1
