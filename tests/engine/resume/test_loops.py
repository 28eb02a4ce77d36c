"""Loops that find their place again, without loading what lies before it."""

import itertools
from pathlib import Path

import pytest
from engine.runs import CONFIGS, DEMO, assert_same_state, tiny

from soft_vit.engine import train
from soft_vit.engine.data.datasets import ShapesDataset
from soft_vit.engine.hooks.checkpoint import AtomicBackend

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
        "model = dict(type='TimmProgressClassifier', model_name='soft_pico', num_classes=10, drop_rate=0.2)\n"
        "train_cfg = dict(by_epoch=False, max_iters=8, val_interval=5)\n"
        "optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-3))\n"
        "param_scheduler = dict(type='CosineAnnealingLR', by_epoch=False, T_max=8)\n"
        "default_hooks = dict(checkpoint=dict(interval=4, by_epoch=False))\n"
        "log_processor = dict(by_epoch=False)\n"
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


def test_epochs_load_the_rest_alone_and_validate_what_was_not(tmp_path, loaded, capsys):
    options = OPTIONS | {"default_hooks.checkpoint.by_epoch": False}
    train(DEMO, work_dir=tmp_path, options=options, validate=False)
    straight = loaded.copy()
    assert len(straight) == 33
    for iteration, skipped, validations in ((4, 15, 2), (6, 22, 2), (9, 33, 1)):
        loaded.clear()
        capsys.readouterr()
        file = str(tmp_path / f"iter_{iteration}.pth")
        resumed = train(
            DEMO, work_dir=tmp_path / "b", resume=file, options=OPTIONS | {"default_hooks.checkpoint": None}
        )
        assert loaded == straight[skipped:]
        assert capsys.readouterr().out.count("accuracy/top1") == validations
        assert resumed.top1 is not None


def test_accumulated_gradients_are_stepped_before_a_checkpoint(tmp_path):
    """Epochs of three batches are windows of two and of one."""
    options = OPTIONS | {"default_hooks.checkpoint.by_epoch": False, "optim_wrapper.accumulative_counts": 2}
    train(DEMO, work_dir=tmp_path / "a", options=options, validate=False)
    assert sorted(path.stem for path in tmp_path.glob("a/*.pth")) == [f"iter_{i}" for i in (2, 3, 5, 6, 8, 9)]
    train(DEMO, work_dir=tmp_path / "b", options=options, validate=False, resume=str(tmp_path / "a" / "iter_5.pth"))
    assert_same_state(tmp_path / "a" / "iter_9.pth", tmp_path / "b" / "iter_9.pth", "state_dict", "optimizer")


def test_loaders_without_a_position(by_iteration, tmp_path):
    with pytest.raises(ValueError, match="batch_sampler"):
        train(DEMO, work_dir=tmp_path, options=OPTIONS | {"train_dataloader.batch_sampler": {"type": "BatchSampler"}})
    small = {"train_dataloader.batch_size": 12, "train_dataloader.drop_last": True}
    with pytest.raises(ValueError, match="11 images"):
        train(by_iteration, work_dir=tmp_path, options=BY_ITERATION | small)


def test_checkpoint_of_another_run_is_no_result(tmp_path):
    options = {**OPTIONS, "train_cfg.max_epochs": 1}
    first = train(DEMO, work_dir=tmp_path, validate=False, options=options)
    assert first.checkpoint == tmp_path / "epoch_1.pth"
    nothing = {**options, "default_hooks.checkpoint": None}
    assert train(DEMO, work_dir=tmp_path, validate=False, options=nothing).checkpoint is None
    (tmp_path / "last_checkpoint").unlink()
    again = train(DEMO, work_dir=tmp_path, validate=False, options={**nothing, "resume": True})
    assert again.checkpoint == first.checkpoint


def test_old_checkpoints_go_after_the_next_is_there(tmp_path, monkeypatch):
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
    monkeypatch.setattr("mmengine.evaluator.Evaluator.evaluate", lambda self, size: {"train": float(next(scores))})
    hook = {"max_keep_ckpts": 2, "save_best": "train", "rule": "greater"}
    options = OPTIONS | {f"default_hooks.checkpoint.{name}": value for name, value in hook.items()}
    train(DEMO, work_dir=tmp_path, options=options)
    # After each best one, the newest is written once more with its name.
    assert " ".join(events) == (
        "epoch_1.pth best_train_epoch_1.pth epoch_1.pth "
        "epoch_2.pth best_train_epoch_2.pth epoch_2.pth - best_train_epoch_1.pth "
        "epoch_3.pth - epoch_1.pth best_train_epoch_3.pth epoch_3.pth - best_train_epoch_2.pth"
    )
    events.clear()
    train(DEMO, work_dir=tmp_path, resume="auto", validate=False, options={**options, "train_cfg.max_epochs": 4})
    assert events == ["epoch_4.pth", "- epoch_2.pth"]
