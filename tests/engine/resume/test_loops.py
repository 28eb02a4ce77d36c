"""Where a run is in its data: order, position, and loops that find it again."""

import copy
import itertools
import random
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import mmengine.dataset.sampler
import pytest
from engine.runs import CONFIGS, DEMO, NARROW, assert_resumes, assert_same_state, scalars, tiny
from mmengine.dataset import DefaultSampler
from mmengine.registry import DATASETS
from torch.utils.data import BatchSampler, DataLoader

from soft_vit.engine import SafeOptimWrapper, train
from soft_vit.engine.data.datasets import ShapesDataset
from soft_vit.engine.hooks.checkpoint import AtomicBackend
from soft_vit.engine.resume import position
from soft_vit.engine.resume.loops import ExactEpochLoop
from soft_vit.engine.resume.position import BatchPositionHook, PositionSampler, SeededDataset, run_seed

# Randomness and samples follow from the position in a run.


class Noise:
    """Thirteen samples, each a new random number."""

    metainfo = {"classes": ("a",)}  # noqa: RUF012

    def __len__(self) -> int:
        return 13

    def __getitem__(self, index: int) -> tuple[int, float]:
        assert type(index) is int
        return index, random.random()

    def __getitems__(self, indices: list[int]) -> list:
        raise AssertionError("goes past the seeding")


@pytest.fixture
def noise(monkeypatch) -> SeededDataset:
    monkeypatch.setattr(DATASETS, "build", lambda config: Noise())
    return SeededDataset({})


def ranks(monkeypatch, rank: int, count: int) -> None:
    for module in (position, mmengine.dataset.sampler):
        monkeypatch.setattr(module, "get_dist_info", lambda: (rank, count))


def sampler(dataset: Any = range(13), **options: object) -> PositionSampler:
    return PositionSampler(dataset, {"type": "DefaultSampler", "shuffle": True, **options}, 5)


def test_order_is_that_of_the_sampler():
    """With the seed of the run or one of its own, and skipped samples left out once."""
    for own, seed in (({}, 9), ({"seed": 77}, 77)):
        ours, theirs = sampler(**own), DefaultSampler(range(13), seed=seed)
        # Nothing before the first epoch begins.
        assert list(ours) == []
        for epoch, skipped in ((0, 0), (3, 0), (1, 4)):
            ours.begin(9, epoch, skipped)
            theirs.set_epoch(epoch)
            given = list(ours)
            assert given == list(theirs)[skipped:]
            assert [index.key for index in given] == [(9, epoch, place) for place in range(skipped, 13)]
            assert list(ours) == list(theirs)
        assert len(ours) == 13


def test_ranks_share_one_order(monkeypatch):
    alone = sampler()
    alone.begin(5, 2, 0)
    expected = {index.key: int(index) for index in alone}
    shared = {}
    for rank in (0, 1, 2):
        ranks(monkeypatch, rank, 3)
        ours = sampler(round_up=False)
        ours.begin(5, 2, 0)
        shared.update({index.key: int(index) for index in ours})
    assert shared == expected


class Repeated(DefaultSampler):
    def __iter__(self):
        return (index for index in super().__iter__() for _ in range(3))


def test_repeated_samples_are_drawn_anew(noise):
    ours = PositionSampler(noise, {"type": Repeated}, 0)
    ours.begin(0, 0, 0)
    drawn = [noise[index] for index in ours]
    assert len({index for index, _ in drawn}) == 13
    assert len({value for _, value in drawn}) == 39


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_any_number_of_workers_draws_the_same(noise, workers, persistent):
    def epochs(loader: DataLoader, skipped: dict[int, int]) -> list:
        given = []
        for epoch, start in skipped.items():
            loader.sampler.begin(5, epoch, start)
            given.append([tuple(map(list, zip(*batch, strict=True))) for batch in loader])
        return given

    options = {"batch_size": 4, "collate_fn": list}
    expected = epochs(DataLoader(noise, sampler=sampler(noise), **options), {0: 0, 1: 0})
    assert expected[0] != expected[1]
    loader = DataLoader(noise, sampler=sampler(noise), num_workers=workers, persistent_workers=persistent, **options)
    assert epochs(loader, {0: 0, 1: 0}) == expected
    # Straight into the second epoch, behind its first two batches.
    assert epochs(loader, {1: 8}) == [expected[1][2:]]


def test_data_set_is_the_given_one_in_all_else(noise):
    """Hooks that replace the pipeline assign to it."""
    assert len(noise) == 13
    assert not hasattr(noise, "__getitems__")
    noise.pipeline = "another"
    assert noise.dataset.pipeline == "another"
    assert copy.copy(noise).metainfo is Noise.metainfo


@pytest.mark.parametrize(("own", "rank", "expected"), [(False, 3, 10), (True, 3, 7), (True, 0, 10)])
def test_all_ranks_share_the_seed_of_the_run(own, rank, expected):
    # MMEngine adds the rank to `seed` when each has its own.
    assert run_seed(SimpleNamespace(seed=10, rank=rank, _randomness_cfg={"diff_rank_seed": own})) == expected


def a_run(processes: int, batch_size: int, steps: int, resume: bool = True) -> SimpleNamespace:
    places = range(batch_size * steps)
    loader = DataLoader(places, batch_sampler=BatchSampler(places, batch_size, drop_last=False))
    settings = {"max_iters": 1000, "logger": Mock(), "hooks": []}
    return SimpleNamespace(world_size=processes, train_dataloader=loader, _resume=resume, **settings)


CHANGES = [
    (a_run(2, 4, 10), "goes on"),
    (a_run(8, 1, 10), "warns"),
    # One more image leaves as many samples for each rank, and a step more.
    (a_run(1, 8, 11), "fails"),
    (a_run(1, 4, 20), "fails"),
    # Starting from weights, not resuming.
    (a_run(1, 4, 20, resume=False), "goes on"),
]


@pytest.mark.parametrize(("now", "outcome"), CHANGES)
def test_change(now, outcome):
    checkpoint = {"meta": {}, "message_hub": {"runtime_info": {"max_iters": 1000}}}
    BatchPositionHook().before_save_checkpoint(a_run(2, 4, 10), checkpoint)
    with pytest.raises(ValueError, match="batch 4 with 10") if outcome == "fails" else nullcontext():
        BatchPositionHook().after_load_checkpoint(now, checkpoint)
    assert now.logger.warning.called == (outcome == "warns")


# Loops that find their place again, without loading what lies before it.


# Batches of 4, 4, 3.
OPTIONS = tiny(images=11, batch=4, epochs=3)
BY_ITERATION = {key: value for key, value in OPTIONS.items() if key != "train_cfg.max_epochs"}


@pytest.fixture
def by_iteration(tmp_path) -> Path:
    """The demo as a run of 8 iterations, which is two rounds and two thirds."""
    path = tmp_path / "by_iteration.py"
    bases = [str(CONFIGS / "_base_" / name) for name in ("default_runtime.py", "shapes.py")]
    path.write_text(
        f"_base_ = {bases}\n"
        "model = dict(type='TimmTrainClassifier', model_name='soft_pico', num_classes=10, drop_rate=0.2)\n"
        "train_cfg = dict(by_epoch=False, max_iters=8, val_interval=5)\n"
        "optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-3))\n"
        "param_scheduler = dict(type='CosineAnnealingLR', by_epoch=False, T_max=8)\n"
        "default_hooks = dict(checkpoint=dict(interval=4, by_epoch=False))\n"
    )
    return path


@pytest.fixture
def loaded(monkeypatch) -> list[int]:
    """Indices of the images that this process loads for training."""
    indices = []
    original = ShapesDataset.__getitem__

    def load(dataset: ShapesDataset, index: int) -> object:
        if dataset.images.split == "train":
            indices.append(index)
        return original(dataset, index)

    monkeypatch.setattr(ShapesDataset, "__getitem__", load)
    return indices


@pytest.mark.parametrize("sampler", ["DefaultSampler", pytest.param("InfiniteSampler", marks=pytest.mark.slow)])
def test_iterations(by_iteration, tmp_path, loaded, sampler):
    options = {**BY_ITERATION, "train_dataloader.sampler.type": sampler}
    train(by_iteration, work_dir=tmp_path / "a", options=options)
    straight = loaded.copy()
    loaded.clear()
    train(by_iteration, work_dir=tmp_path / "b", resume=str(tmp_path / "a" / "iter_4.pth"), options=options)
    assert loaded == straight[-len(loaded) :]
    # Of a round of 11 images five are behind the fourth batch; the endless order has four in every batch.
    assert len(loaded) == (18 - 4 + 1 if sampler == "DefaultSampler" else 16)
    assert_same_state(tmp_path / "a" / "iter_8.pth", tmp_path / "b" / "iter_8.pth")
    assert [line["step"] for line in scalars(tmp_path / "a")] == [1, 2, 3, 4, 5, 5, 6, 7, 8, 8]


def test_epochs_load_the_rest_alone_and_validate_what_was_not(tmp_path, loaded, capsys):
    options = OPTIONS | {"default_hooks.checkpoint.by_epoch": False}
    train(DEMO, work_dir=tmp_path, options=options, validate=False)
    straight = loaded.copy()
    assert len(straight) == 33
    for iteration, skipped, validations in ((4, 15, 2), (6, 22, 2), (9, 33, 1)):
        loaded.clear()
        capsys.readouterr()
        file = str(tmp_path / f"iter_{iteration}.pth")
        again = train(DEMO, work_dir=tmp_path / "b", resume=file, options=OPTIONS | {"default_hooks.checkpoint": None})
        assert loaded == straight[skipped:]
        assert capsys.readouterr().out.count("accuracy/top1") == validations
        assert "accuracy/top1" in again.metrics


def test_accumulated_gradients_are_stepped_before_a_checkpoint(tmp_path):
    """Epochs of three batches are windows of two and of one."""
    options = OPTIONS | {"default_hooks.checkpoint.by_epoch": False, "optim_wrapper.accumulative_counts": 2}
    assert_resumes(DEMO, tmp_path, options, "iter_5.pth", "state_dict", "optimizer", validate=False)
    assert sorted(path.stem for path in tmp_path.glob("whole/*.pth")) == [f"iter_{i}" for i in (2, 3, 5, 6, 8, 9)]


@pytest.mark.parametrize(("counts", "steps"), [(3, [3, 6, 8]), (20, [8])])
def test_a_run_by_iteration_is_one_pass(counts, steps, by_iteration, tmp_path, monkeypatch):
    """Windows of accumulated gradients know nothing of the rounds through the data, which have 3 batches."""
    found, step = [], SafeOptimWrapper.step
    monkeypatch.setattr(SafeOptimWrapper, "step", lambda self: (step(self), found.append(self.inner_count))[0])
    wrapper = {"optim_wrapper.type": "SafeOptimWrapper", "optim_wrapper.accumulative_counts": counts}
    options = BY_ITERATION | wrapper | {"default_hooks.checkpoint": None}
    train(by_iteration, work_dir=tmp_path / "run", validate=False, options=options)
    assert found == steps


LINEAR = {"type": "TimmLR", "sched": "poly", "decay_rate": 1.0, "convert_to_iter_based": True}
SCHEDULES = [
    # In units of the optimizer's rate; rounds have three iterations, and the run has 8.
    ({"type": "StepLR", "step_size": 1, "gamma": 0.5, "end": 9}, [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]),
    (LINEAR, [1 - i / 8 for i in range(8)]),
]


@pytest.mark.parametrize(("schedule", "rates"), SCHEDULES)
def test_schedules_count_rounds_in_a_run_by_iteration(schedule, rates, by_iteration, tmp_path, capsys):
    options = BY_ITERATION | {"param_scheduler": [schedule], "default_hooks.checkpoint.interval": 3}

    def rates_of(name: str, resume: str | None = None) -> list[float]:
        train(by_iteration, work_dir=tmp_path / name, validate=False, options=options, resume=resume)
        return [1e3 * line["lr"] for line in scalars(tmp_path / name)]

    # Rates are logged with five digits.
    assert rates_of("whole") == pytest.approx(rates, abs=1e-4)
    assert ("StepLR ends at 9, after the run" in capsys.readouterr().out) == ("end" in schedule)
    # The epoch of the schedule changes right after the checkpoint.
    assert rates_of("rest", str(tmp_path / "whole" / "iter_6.pth")) == pytest.approx(rates[6:], abs=1e-4)


@pytest.mark.parametrize("by_epoch", [True, False])
def test_patience_goes_on(by_epoch, by_iteration, tmp_path, monkeypatch):
    """Each validation is worse than the first; the third one ends the run, resumed or not."""
    scores = itertools.count(0, -1)
    monkeypatch.setattr("mmengine.evaluator.Evaluator.evaluate", lambda self, n: {"accuracy/top1": float(next(scores))})
    stopping = {"type": "EarlyStoppingHook", "monitor": "accuracy/top1", "rule": "greater", "patience": 2}
    options = {**(tiny(images=4, batch=4, epochs=6) if by_epoch else BY_ITERATION), "custom_hooks": [stopping]}
    options |= {} if by_epoch else {"train_cfg.val_interval": 1, "default_hooks.checkpoint.interval": 1}
    config, name = (DEMO, "epoch") if by_epoch else (by_iteration, "iter")
    train(config, work_dir=tmp_path / "whole", options=options)
    assert len(list(tmp_path.glob("whole/*.pth"))) == 3
    resume = str(tmp_path / "whole" / f"{name}_2.pth")
    result = train(config, work_dir=tmp_path / "rest", options=options, resume=resume)
    assert result.checkpoint.name == f"{name}_3.pth"


def test_loaders_without_a_position(by_iteration, tmp_path):
    with pytest.raises(ValueError, match="batch_sampler"):
        train(DEMO, work_dir=tmp_path, options=OPTIONS | {"train_dataloader.batch_sampler": {"type": "BatchSampler"}})
    small = {"train_dataloader.batch_size": 12, "train_dataloader.drop_last": True}
    with pytest.raises(ValueError, match="11 images"):
        train(by_iteration, work_dir=tmp_path, options=BY_ITERATION | small)


CHECKS = [
    # The last of four maps of 32 pixels has one position, of which BatchNorm has no variance.
    ({"train_dataloader.dataset.length": 9}, "drop_last"),
    ({"train_dataloader.batch_size": 1, "train_dataloader.drop_last": True}, "batch_size"),
    ({"train_dataloader.dataset.length": 9, "image_size": 64}, None),
    ({"default_hooks.checkpoint.save_best": "accuracy/top5"}, "accuracy/top5"),
    ({"default_hooks.checkpoint.save_best": ["auto"]}, None),
    ({"custom_hooks": [{"type": "EarlyStoppingHook", "monitor": "ema/accuracy/top1"}]}, "ema/accuracy/top1"),
    ({"param_scheduler": {"type": "ReduceOnPlateauLR", "monitor": "accuracy", "rule": "greater"}}, "accuracy"),
]


@pytest.mark.parametrize(("options", "named"), CHECKS)
def test_checked_before_the_first_step(tmp_path, monkeypatch, options, named):
    steps = []
    monkeypatch.setattr(ExactEpochLoop, "run_iter", lambda loop, *_: steps.append(loop))
    options = {**tiny(11, 4, 1, stages=NARROW), "default_hooks.checkpoint.interval": -1, **options}
    options |= {"default_hooks.checkpoint.save_last": False, "train_cfg.val_begin": 9}
    with pytest.raises(ValueError, match=named) if named else nullcontext():
        train(DEMO, work_dir=tmp_path, options=options)
    assert (len(steps) == 0) == (named is not None)


def test_checkpoint_of_another_run_is_no_result(tmp_path):
    options = {**OPTIONS, "train_cfg.max_epochs": 1}
    first = train(DEMO, work_dir=tmp_path, validate=False, options=options)
    assert first.checkpoint == tmp_path / "epoch_1.pth"
    nothing = {**options, "default_hooks.checkpoint": None}
    assert train(DEMO, work_dir=tmp_path, validate=False, options=nothing).checkpoint is None
    (tmp_path / "last_checkpoint").unlink()
    again = train(DEMO, work_dir=tmp_path, validate=False, options={**nothing, "resume": True})
    assert again.checkpoint == first.checkpoint


def test_old_checkpoints_go_after_the_next_is_there(tmp_path, monkeypatch, logged):
    """The best one counts for itself, and a resumed run goes on with the files that are there."""
    events = []
    put, remove = AtomicBackend.put, AtomicBackend.remove

    def log_put(backend: AtomicBackend, data: bytes, path: str) -> None:
        put(backend, data, path)
        events.append(Path(path).name)

    def log_remove(backend: AtomicBackend, path: str) -> None:
        events.append(f"- {Path(path).name}")
        remove(backend, path)

    monkeypatch.setattr(AtomicBackend, "put", log_put)
    monkeypatch.setattr(AtomicBackend, "remove", log_remove)
    # Each validation better than the one before.
    scores = itertools.count()
    monkeypatch.setattr("mmengine.evaluator.Evaluator.evaluate", lambda self, n: {"accuracy/top1": float(next(scores))})
    options = OPTIONS | {"default_hooks.checkpoint": {"max_keep_ckpts": 2, "save_best": "accuracy/top1"}}
    train(DEMO, work_dir=tmp_path, options=options)
    assert " ".join(events) == (
        "epoch_1.pth best_accuracy_top1_epoch_1.pth "
        "epoch_2.pth best_accuracy_top1_epoch_2.pth - best_accuracy_top1_epoch_1.pth "
        "epoch_3.pth - epoch_1.pth best_accuracy_top1_epoch_3.pth - best_accuracy_top1_epoch_2.pth"
    )
    events.clear()
    train(DEMO, work_dir=tmp_path, resume="auto", validate=False, options={**options, "train_cfg.max_epochs": 4})
    assert events == ["epoch_4.pth", "- epoch_2.pth"]
    assert any("Schedules stay those of" in line for line in logged)
    # The best one of another folder stays.
    (best := tmp_path / "best_accuracy_top1_epoch_2.pth").touch()
    train(DEMO, work_dir=tmp_path / "other", resume=str(tmp_path / "epoch_3.pth"), options=options)
    assert best.is_file()


@pytest.mark.parametrize(("kept", "epochs"), [(-1, 2), (2, 1)])
def test_what_a_signal_wrote_goes_in_the_end(tmp_path, kept, epochs):
    (tmp_path / "stopped_iter_1.pth").touch()
    options = tiny(images=4, batch=4, epochs=epochs) | {"default_hooks.checkpoint.save_last": False}
    options |= {"default_hooks.checkpoint.max_keep_ckpts": kept}
    train(DEMO, work_dir=tmp_path, validate=False, options=options)
    assert [path.name for path in tmp_path.glob("*.pth")].count("stopped_iter_1.pth") == 0
