"""Stop a run at a signal, with exit code 75."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from soft_vit.resume.ranks import AnyRank

EXIT_STOPPED = 75
"""Exit code of a run that was asked to stop: EX_TEMPFAIL of sysexits.h, try again later."""
# Seconds within which a second SIGINT is the same one, forwarded by a launcher.
_SECOND_CTRL_C = 0.5
_SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP")


class RunStopped(SystemExit):
    """Ends the process with code 75 after a signal; what was done so far is saved."""

    def __init__(self) -> None:
        super().__init__(EXIT_STOPPED)


# The name of the first signal since `listening` began.
_received: list[str] = []


@contextmanager
def listening(signals: Sequence[str] = ("SIGTERM", "SIGINT"), patience: float = 5.0) -> Iterator[None]:
    """Let a `Stop` in the block see these signals.

    A second signal ends the process at once, unless it follows within `patience` seconds (half a second for Ctrl-C): a
    launcher and the cluster may both forward the same one. Raises ValueError for the name of another signal.
    """
    if unknown := [name for name in signals if name not in _SIGNALS or not hasattr(signal, name)]:
        raise ValueError(f"stop_signals must be among {', '.join(_SIGNALS)}, got {unknown[0]!r}.")
    process, first = os.getpid(), 0.0

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if os.getpid() != process:
            # A data worker inherits the handler, and ends with its run.
            return
        now = time.monotonic()
        # A person who presses Ctrl-C again does not want to wait.
        if _received and now - first >= (min(patience, _SECOND_CTRL_C) if number == signal.SIGINT else patience):
            signal.signal(number, signal.SIG_DFL)
            os.kill(process, number)
        if not _received:
            first = now
            _received.append(signal.Signals(number).name)
            if number == signal.SIGINT:
                print("The run is saved at the end of this step; Ctrl-C again ends it at once.", flush=True)

    # Python allows signal handlers in the main thread only.
    names = signals if threading.current_thread() is threading.main_thread() else ()
    _received.clear()
    previous = {number: signal.signal(number, receive) for number in (getattr(signal, name) for name in names)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _received.clear()


class Stop:
    """Whether a run is asked to stop, alike in all of its processes."""

    def __init__(self) -> None:
        self._any_rank = AnyRank()

    def is_asked(self) -> bool:
        """Return whether any process has received a signal within `listening`. All processes call it together."""
        return self._any_rank(bool(_received))

    @property
    def reason(self) -> str:
        """The name of the signal."""
        return _received[0] if _received else "a signal of another process"

    def leave(self) -> None:
        """End all processes together by `RunStopped`, once what they did is saved."""
        # A launcher takes the first exit for a failure, and would kill the main process while it writes.
        self._any_rank(True)
        raise RunStopped


def shield(worker: int = 0) -> None:
    """Let a worker process end when its run ends it or is gone, not when a cluster signals every process.

    The run needs the worker's result to finish its step and save. worker: its number, which a DataLoader gives.
    """
    # Ctrl-C reaches all processes of a terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # macOS lacks this function, without which a process cannot tell who sent a signal.
    if hasattr(signal, "sigtimedwait"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        sent = signal.sigtimedwait({signal.SIGTERM}, 1.0)
        if sent is not None and sent.si_pid == parent:
            break
    os._exit(0)
