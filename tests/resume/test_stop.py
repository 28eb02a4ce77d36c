"""Signals, workers that outlive them, and processes that choose alike."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from distributed.processes import call_in_ranks

from soft_vit.resume.ranks import AnyRank, from_main
from soft_vit.resume.stop import listening, shield

SIGNALS = [
    (signal.SIGTERM, 0.0, -signal.SIGTERM),
    (signal.SIGTERM, 3600.0, 0),
    # Within half a second the second one is the same, forwarded by a launcher.
    (signal.SIGINT, 3600.0, 0),
    (signal.SIGINT, 0.0, -signal.SIGINT),
]


@pytest.mark.parametrize(("number", "patience", "ended"), SIGNALS)
def test_second_signal(number, patience, ended):
    child = os.fork()
    if child == 0:
        with listening(patience=patience):
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == ended


def test_in_another_thread_nothing_is_listened_for():
    with ThreadPoolExecutor(1) as thread:
        thread.submit(listening().__enter__).result()


def test_a_worker_ends_with_its_run_alone():
    """Not at a signal from elsewhere, but at one of its parent, and when this is gone."""
    for by_parent in (True, False):
        reading, writing = os.pipe()
        if (run := os.fork()) == 0:
            if (worker := os.fork()) == 0:
                shield()
                os.write(writing, b"x")
                time.sleep(60)
            os.read(reading, 1)
            # A shell is not the parent.
            os.system(f"kill -INT {worker}; kill {worker}; sleep 0.2")
            assert os.waitpid(worker, os.WNOHANG) == (0, 0)
            if by_parent:
                os.kill(worker, signal.SIGTERM)
                os.waitpid(worker, 0)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]) == 0
        os.close(writing)
        # The end of the pipe, which the worker holds as long as it lives.
        while os.read(reading, 1):
            pass


def questions(rank: int) -> list:
    def fail() -> None:
        raise FileNotFoundError(f"rank {rank}")

    with pytest.raises(FileNotFoundError, match="rank 0"):
        from_main(fail)
    return [from_main(lambda: rank), AnyRank()(rank == 1), AnyRank()(False)]


def test_ranks_choose_as_the_main_one_does(tmp_path):
    assert call_in_ranks(2, tmp_path, questions) == [[0, True, False]] * 2
