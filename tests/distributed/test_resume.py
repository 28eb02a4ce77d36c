"""A run that is stopped in any way and resumed ends as if nothing had happened to it, bit for bit."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from distributed.kill_trials import loading, trials
from distributed.preparations import FullDisk, Strike
from distributed.processes import differences, final_state, train

from soft_vit.engine.resume.read import find_newest_checkpoint
from soft_vit.engine.resume.stop import EXIT_STOPPED


def output(folder: Path) -> str:
    return (folder / "output").read_text()


def test_kill_trials(straight, tmp_path):
    for events, wrong in trials(tmp_path, straight, count=1, seed=3):
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
    assert "error: A checkpoint could not be written" in output(tmp_path)
    assert "Traceback" not in output(tmp_path)
    assert not list(tmp_path.glob(".*"))
    newest = tmp_path / "iter_6.pth"
    assert find_newest_checkpoint(tmp_path) == newest
    newest.write_bytes(newest.read_bytes()[:-1000])
    assert train(tmp_path, "--resume") == 0, output(tmp_path)
    assert "iter_6.pth is damaged" in output(tmp_path)
    assert "resumed epoch: 1, iter: 5" in output(tmp_path)
    assert differences(final_state(tmp_path), straight) == []
    assert not list(tmp_path.glob("stopped_*"))
