"""A run that is stopped in any way and resumed ends as if nothing had happened to it, bit for bit.

So does one of two processes over gloo, whose steps test_ranks.py holds against those of one process. All runs are
forked from a process that has imported everything.
"""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from distributed.kill_trials import loading, trials
from distributed.preparations import FullDisk, Record, Strike
from distributed.processes import final_state, output, train, train_ranks
from engine.runs import differences

from soft_vit.engine.resume.read import find_newest_checkpoint, load_checkpoint_file
from soft_vit.resume.stop import EXIT_STOPPED

# 24 images leave no batch that is smaller than the others.
OPTIONS = ["train_dataloader.dataset.length=24"]
STEPS = 9


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> dict:
    """What the long run ends with when nothing happens to it."""
    folder = tmp_path_factory.mktemp("straight")
    assert train(folder) == 0, output(folder)
    return final_state(folder)


def test_kill_trials(straight, tmp_path):
    # With two workers, in the writing of the checkpoint of step 8: it goes on from step 6, within an epoch.
    for events, wrong in trials(tmp_path, straight, count=1, seed=134):
        assert not wrong, f"{events}: {wrong}"


@pytest.mark.slow
def test_twenty_kill_trials():
    script = Path(__file__).with_name("kill_trials.py")
    ended = subprocess.run([sys.executable, str(script), "--trials", "20"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]


@pytest.mark.slow
def test_notice_to_every_process(straight, tmp_path):
    """In the last step of an epoch, before its checkpoint and validation; workers get the signal too."""
    strike = Strike(10, "before", signal.SIGTERM, group=True)
    assert train(tmp_path, options=loading(2), preparation=strike.install) == EXIT_STOPPED, output(tmp_path)
    assert "iteration 10 is saved; go on with --resume" in output(tmp_path)
    assert find_newest_checkpoint(tmp_path).name in ("stopped_iter_10.pth", "iter_10.pth")
    assert train(tmp_path, "--resume") == 0, output(tmp_path)
    assert differences(final_state(tmp_path), straight) == []
    assert not list(tmp_path.glob("stopped_*"))


def test_ctrl_c_then_a_full_disk_then_a_damaged_file(straight, tmp_path):
    # A signal after step 3 is seen at the end of step 4; there, within an epoch, no checkpoint would be due at step 5.
    assert train(tmp_path, preparation=Strike(4, "after", signal.SIGINT).install) == EXIT_STOPPED, output(tmp_path)
    assert "iteration 5 is saved; go on with --resume" in output(tmp_path)
    assert train(tmp_path, "--resume", options=loading(2), preparation=FullDisk(7).install) == 1
    assert f"error: {tmp_path} must take a checkpoint (File too large)" in output(tmp_path)
    assert "Traceback" not in output(tmp_path)
    assert not list(tmp_path.glob(".*.tmp"))
    newest = tmp_path / "iter_6.pth"
    assert find_newest_checkpoint(tmp_path) == newest
    newest.write_bytes(newest.read_bytes()[:-1000])
    assert train(tmp_path, "--resume") == 0, output(tmp_path)
    assert "iter_6.pth is damaged" in output(tmp_path)
    assert "resumed epoch: 1, iter: 5" in output(tmp_path)
    assert differences(final_state(tmp_path), straight) == []
    assert not list(tmp_path.glob("stopped_*"))


@pytest.fixture(scope="module")
def live(tmp_path_factory) -> Path:
    """Return the folder of two processes that train to the end, with BatchNorm's statistics as they come."""
    record = Record(tmp_path_factory.mktemp("live"))
    codes = train_ranks(2, record.folder, options=OPTIONS, preparations=[record.install] * 2)
    assert codes == [0, 0], output(record.folder)
    return record.folder


@pytest.mark.parametrize("iteration", [2, 6, STEPS])
def test_a_checkpoint_holds_the_buffers_of_all_ranks(live, iteration):
    ranks = [torch.load(live / f"buffers_{rank}_{iteration}", weights_only=True) for rank in (0, 1)]
    means = [name for name in ranks[0]["after"] if name.endswith("running_mean")]
    assert any(not torch.equal(ranks[0]["before"][name], ranks[1]["before"][name]) for name in means)
    assert differences(ranks[0]["after"], ranks[1]["after"]) == []
    if iteration == STEPS:
        # The plain weights are beside the averaged ones.
        saved = load_checkpoint_file(live / f"iter_{iteration}.pth")["ema_state_dict"]
        assert all(torch.equal(saved[f"module.{name}"], ranks[0]["after"][name]) for name in means)


TWO_STRIKES = pytest.param([(1, Strike(1, "before")), (1, Strike(7, "before"))], marks=pytest.mark.slow)


@pytest.mark.parametrize("strikes", [[(0, Strike(4, "writing"))], TWO_STRIKES])
def test_killed_ranks_are_restarted(live, tmp_path, strikes):
    """By a launcher that repeats its command, in a folder where an earlier run has left checkpoints."""
    for name in ("iter_8.pth", "epoch_3.pth", "last_checkpoint"):
        shutil.copy(live / name, tmp_path)
    for restarts, (rank, strike) in enumerate(strikes):
        preparations = [strike.install if rank == other else None for other in (0, 1)]
        codes = train_ranks(2, tmp_path, options=OPTIONS, preparations=preparations, launcher="/a", restarts=restarts)
        assert (codes[rank], codes[1 - rank]) == (-strike.number, 1), output(tmp_path)
    assert train_ranks(2, tmp_path, options=OPTIONS, launcher="/a", restarts=len(strikes)) == [0, 0], output(tmp_path)
    # The newest checkpoint before the last strike.
    assert f"iter: {strikes[-1][1].step - 1}" in re.search("resumed epoch.*", output(tmp_path))[0]
    assert differences(final_state(tmp_path), final_state(live)) == []


@pytest.mark.parametrize("divided", [pytest.param(False, marks=pytest.mark.slow), True])
def test_notice_to_one_of_two(live, tmp_path, divided):
    """divided: the optimizer's state is spread over the processes; it steps as a whole one does."""
    zero = {"type": "ZeroRedundancyOptimizer", "optimizer_type": "AdamW"}
    options = [*OPTIONS, *(f"optim_wrapper.optimizer.{name}={value}" for name, value in zero.items() if divided)]
    strike = Strike(4, "before", signal.SIGTERM)
    codes = train_ranks(2, tmp_path, options=options, preparations=(None, strike.install))
    assert codes == [EXIT_STOPPED, EXIT_STOPPED], output(tmp_path)
    assert "iteration 4 is saved" in output(tmp_path)
    assert train_ranks(2, tmp_path, "--resume", options=options) == [0, 0], output(tmp_path)
    ended, expected = final_state(tmp_path), final_state(live)
    if divided:
        # Its groups name fewer of AdamW's settings.
        ended["optimizer"], expected["optimizer"] = ended["optimizer"]["state"], expected["optimizer"]["state"]
    assert differences(ended, expected) == []


# Without unused parameters, DDP arranges its buckets anew after the first step, and adds in another order.
OTHERS = {"three": (3, 7, ["train_dataloader.batch_size=2", "find_unused_parameters=True"])}
for _name in ("lion", "adafactor", "lamb", "muon", "nadamuon"):
    OTHERS[_name] = 2, 4, [f"optim_wrapper.optimizer.type=timm.{_name}", "optim_wrapper.accumulative_counts=2"]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "step", "changes"), OTHERS.values(), ids=OTHERS)
def test_notice_to_the_last_of_several(tmp_path, count, step, changes):
    options, strike = [*OPTIONS, *changes], Strike(step, "before", signal.SIGTERM)
    whole, parts, preparations = tmp_path / "whole", tmp_path / "parts", [*[None] * (count - 1), strike.install]
    assert train_ranks(count, whole, options=options) == [0] * count, output(whole)
    assert train_ranks(count, parts, options=options, preparations=preparations) == [EXIT_STOPPED] * count
    assert train_ranks(count, parts, "--resume", options=options) == [0] * count, output(parts)
    assert differences(final_state(parts), final_state(whole)) == []
