"""One run in a folder."""

import os
import signal
import time

import pytest
from engine.runs import DEMO, tiny

from soft_vit.engine import train
from soft_vit.engine.resume.lock import only_run_in


def test_second_run_in_a_folder_is_refused(tmp_path):
    """Until the first one is killed, even if a data worker of it still lives."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.setsid()
        with only_run_in(tmp_path):
            if os.fork():
                os.write(writing, b"x")
            time.sleep(600)
    os.read(reading, 1)
    try:
        with pytest.raises(ValueError, match=f"work_dir .*{tmp_path}"):
            train(DEMO, work_dir=tmp_path, options=tiny(4, 4, 1), validate=False)
        assert not list(tmp_path.glob("*.pth"))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        train(DEMO, work_dir=tmp_path, options=tiny(4, 4, 1), validate=False)
        # One run after another in one process.
        with only_run_in(tmp_path):
            pass
    finally:
        os.killpg(child, signal.SIGKILL)
