"""A run that is stopped in any way and resumed ends as if nothing had happened to it, bit for bit."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from distributed.kill_trials import loading, trials
from distributed.preparations import FullDisk, Strike
from distributed.processes import differences, final_state, train

from soft_vit.engine.checkpoints.checkpoint_hook import find_newest_checkpoint
from soft_vit.engine.resume.stop_hook import EXIT_STOPPED


def output(folder: Path) -> str:
    return (folder / "output").read_text()


def test_kill_trials(straight, tmp_path):
    for events, wrong in trials(tmp_path, straight, count=2, seed=1):
        assert not wrong, f"{events}: {wrong}"


@pytest.mark.slow
def test_twenty_kill_trials():
    script = Path(__file__).with_name("kill_trials.py")
    ended = subprocess.run([sys.executable, str(script), "--trials", "20"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]


@pytest.mark.parametrize(
    ("strike", "before", "after"),
    [
        # In the middle of an epoch, where no checkpoint is due.
        (Strike(3, "after", signal.SIGTERM), 0, 2),
        # In its last step, before an epoch's checkpoint and validation; every process is told, as clusters do.
        (Strike(10, "before", signal.SIGTERM, group=True), 2, 0),
    ],
    ids=["mid-epoch", "end of an epoch, to the group"],
)
def test_notice(straight, tmp_path, strike, before, after):
    assert train(tmp_path, options=loading(before), preparation=strike.install) == EXIT_STOPPED, output(tmp_path)
    # A signal after the step is seen at the end of the next.
    step = strike.step + (strike.place == "after")
    assert f"iteration {step} is saved; go on with --resume" in output(tmp_path)
    assert find_newest_checkpoint(tmp_path).name in (f"stopped_iter_{step}.pth", f"iter_{step}.pth")
    assert train(tmp_path, "--resume", options=loading(after)) == 0, output(tmp_path)
    assert differences(final_state(tmp_path), straight) == []
    assert not list(tmp_path.glob("stopped_*"))


def test_full_disk_and_a_damaged_file(straight, tmp_path):
    assert train(tmp_path, preparation=FullDisk(7).install) == 1
    assert "error: A checkpoint could not be written" in output(tmp_path)
    assert "Traceback" not in output(tmp_path)
    assert {path.name for path in tmp_path.glob("*.pth")} == {"iter_4.pth", "epoch_1.pth", "iter_6.pth"}
    assert not list(tmp_path.glob(".*"))
    # Beside that the newest one is cut off.
    newest = tmp_path / "iter_6.pth"
    newest.write_bytes(newest.read_bytes()[:-1000])
    assert train(tmp_path, "--resume") == 0, output(tmp_path)
    assert "iter_6.pth is damaged and passed over" in output(tmp_path)
    assert "resumed epoch: 1, iter: 5" in output(tmp_path)
    assert differences(final_state(tmp_path), straight) == []
