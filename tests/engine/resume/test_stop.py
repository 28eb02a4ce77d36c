"""Signals that stop a run, and the lock of its folder."""

import os
import signal
import time
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
from engine.runs import CONFIGS, DEMO, tiny
from torch.utils.data import BatchSampler, DataLoader

from soft_vit.engine import SafeCheckpointHook, pretrain, train
from soft_vit.engine.resume.stop import StopHook
from soft_vit.resume.lock import only_run_in
from soft_vit.resume.stop import EXIT_STOPPED, RunStopped, listening

# What a signal does to a run.


def a_run(saved_iter: int | None, due: bool = True) -> Mock:
    return Mock(
        world_size=1,
        iter=6,
        hooks=[Mock(SafeCheckpointHook, saved_iter=saved_iter)],
        optim_wrapper=Mock(should_update=lambda: due),
        val_dataloader=DataLoader(range(10), batch_sampler=BatchSampler(range(10), 4, drop_last=False)),
    )


@pytest.fixture
def told():
    """A signal has arrived."""
    with listening():
        os.kill(os.getpid(), signal.SIGTERM)
        yield


@pytest.mark.parametrize(("saved_iter", "written"), [(None, 1), (6, 1), (7, 0)])
def test_what_is_not_saved_yet_is_saved(told, saved_iter, written):
    with pytest.raises(SystemExit) as caught:
        StopHook().after_train_iter(run := a_run(saved_iter), batch_idx=0)
    assert caught.value.code == EXIT_STOPPED == 75
    assert run.hooks[0].save_between.call_count == written
    assert "iteration 7" in run.logger.info.call_args.args[0]


def test_a_window_of_accumulated_gradients_is_finished(told):
    StopHook().after_train_iter(run := a_run(None, due=False), batch_idx=0)
    assert not run.hooks[0].save_between.called


@pytest.mark.parametrize(("saved_iter", "batch", "stops"), [(6, 0, True), (6, 1, True), (6, 2, False), (5, 0, False)])
def test_validation_is_left_when_nothing_is_lost(told, saved_iter, batch, stops):
    # Of 10 images in batches of 4, the third is one that other ranks may not have.
    with pytest.raises(RunStopped) if stops else nullcontext():
        StopHook().after_val_iter(a_run(saved_iter), batch_idx=batch)


def test_other_signals_on_request():
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGTERM)
    with listening(["SIGUSR1", "SIGTERM"]):
        os.kill(os.getpid(), signal.SIGUSR1)
        with pytest.raises(RunStopped):
            StopHook().after_train_iter(a_run(None), batch_idx=0)
    assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGTERM)) == before
    with listening():
        StopHook().after_train_iter(a_run(None), batch_idx=0)


def test_run_with_the_hook_of_mmengine_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr("soft_vit.resume.stop.Stop.is_asked", lambda self: True)
    options = tiny(4, 2, 1) | {"default_hooks.checkpoint.type": "CheckpointHook"}
    with pytest.raises(RunStopped):
        train(DEMO, work_dir=tmp_path, options=options, validate=False)
    assert (tmp_path / "stopped_iter_1.pth").is_file()


# One run in a folder.


def test_second_run_in_a_folder_is_refused(tmp_path):
    """Until the first one is killed, even if a data worker of it still lives."""
    reading, writing = os.pipe()
    run = lambda: train(DEMO, work_dir=tmp_path, options=tiny(4, 4, 1), validate=False)  # noqa: E731  short
    if (child := os.fork()) == 0:
        os.setsid()
        with only_run_in(tmp_path):
            if os.fork():
                os.write(writing, b"x")
            time.sleep(600)
    os.read(reading, 1)
    try:
        for second in (run, lambda: pretrain("soft_pico", CONFIGS.parent / "docs" / "images", tmp_path)):
            with pytest.raises(ValueError, match=str(tmp_path)):
                second()
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        run()
        # One run after another in one process.
        with only_run_in(tmp_path):
            pass
    finally:
        os.killpg(child, signal.SIGKILL)
