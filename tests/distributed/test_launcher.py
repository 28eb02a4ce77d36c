"""A worker of a launched run dies."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from distributed.processes import CONFIG, ONE_CPU, TRAIN, final_state, train_ranks
from engine.runs import differences

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are looked up in /proc"),
]

MARK = "SOFT_VIT_TEST_RUN"


def processes_of(run: str) -> dict[int, str]:
    """Process ids and command lines of a run's processes."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={run}".encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            # It has ended meanwhile.
            continue
    return found


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.mark.parametrize("restarts", [0, 1])
def test_one_of_two_is_killed(tmp_path, restarts):
    run = uuid.uuid4().hex
    options = ["--cfg-options", "train_dataloader.num_workers=1"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["--max-restarts", str(restarts)]
    with open(tmp_path / "output", "w") as file:
        launcher = subprocess.Popen(
            [*command, TRAIN, CONFIG, "--work-dir", str(tmp_path), "--launcher", "pytorch", *options],
            env={**os.environ, MARK: run, **ONE_CPU},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: (tmp_path / "iter_2.pth").exists() or launcher.poll() is not None, 120)
        assert launcher.poll() is None, (tmp_path / "output").read_text()[-3000:]
        # The ranks alone are children of the launcher.
        ranks = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        ranks = [int(pid) for pid in ranks if "train.py" in processes_of(run).get(int(pid), "")]
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        assert (launcher.wait(120) == 0) == (restarts > 0), (tmp_path / "output").read_text()[-3000:]
        # Workers that load data notice within seconds that nobody waits for them.
        wait_until(lambda: not processes_of(run), 30)
    finally:
        for pid in processes_of(run):
            os.kill(pid, signal.SIGKILL)
        launcher.wait()
    if not restarts:
        assert train_ranks(2, tmp_path, "--resume") == [0, 0], (tmp_path / "output").read_text()[-3000:]
    assert train_ranks(2, tmp_path / "straight") == [0, 0]
    assert differences(final_state(tmp_path), final_state(tmp_path / "straight")) == []
