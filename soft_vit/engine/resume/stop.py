"""Save and end a run at a signal, with exit code 75."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from mmengine.dist import get_rank, is_main_process
from mmengine.hooks import Hook
from mmengine.registry import FUNCTIONS
from mmengine.runner import Runner
from torch import distributed

from soft_vit.engine.hooks.checkpoint import SafeCheckpointHook
from soft_vit.engine.resume.position import seed_worker
from soft_vit.registry import HOOKS, register

EXIT_STOPPED = 75
"""Exit code of a run that was asked to stop: EX_TEMPFAIL of sysexits.h, try again later."""
# Seconds within which a second SIGINT is the same one, forwarded by a launcher.
_SECOND_CTRL_C = 0.5
_SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP")


class RunStopped(SystemExit):
    """Ends the process with code 75 after a signal; the training so far is saved."""

    def __init__(self) -> None:
        super().__init__(EXIT_STOPPED)


# The name of the first signal since `listening` began.
_received: list[str] = []


@contextmanager
def listening(signals: Sequence[str] = ("SIGTERM", "SIGINT"), patience: float = 5.0) -> Iterator[None]:
    """Let a `StopHook` save and end a run in the block at one of these signals.

    A second signal ends the process at once, unless it follows within `patience` seconds (half a second for Ctrl-C): a
    launcher and the cluster may both forward the same one. Raises ValueError for the name of another signal.
    """
    unknown = [name for name in signals if name not in _SIGNALS or not hasattr(signal, name)]
    if unknown:
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
                print("Saving a checkpoint at the end of this step; Ctrl-C again ends the run at once.", flush=True)

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


@register(HOOKS)
class StopHook(Hook):
    """Saves and ends a run after a signal that `listening` received.

    All ranks stop after the same iteration: the first that ends a window of accumulated gradients after any rank got
    the signal. They write one checkpoint. In a validation they stop at once if the training so far is saved.
    """

    # After the hooks that save, so that nothing is saved twice.
    priority = "LOWEST"

    def __init__(self) -> None:
        self._group: Any = None

    def before_train(self, runner: Runner) -> None:
        if runner.distributed:
            # The flag lives on the CPU: reading it from a GPU would synchronise every step.
            self._group = distributed.new_group(backend="gloo")

    def _agreed(self) -> bool:
        """Return whether any rank has received a signal; all ranks must call it together."""
        if self._group is None:
            return bool(_received)
        flag = torch.tensor(len(_received))
        distributed.all_reduce(flag, distributed.ReduceOp.MAX, group=self._group)
        return bool(flag)

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        if not self._agreed() or not runner.optim_wrapper.should_update():
            return
        hooks = _checkpoint_hooks(runner)
        if all(hook.saved_iter != runner.iter + 1 for hook in hooks):
            hooks[0].save_between(runner)
        self._leave(runner, runner.iter + 1)

    def after_val_iter(self, runner: Runner, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        loader = runner.val_dataloader
        # Ranks may differ by one batch.
        everywhere = len(loader.dataset) // (runner.world_size * loader.batch_sampler.batch_size)
        if batch_idx >= everywhere or not self._agreed():
            return
        if any(hook.saved_iter == runner.iter for hook in _checkpoint_hooks(runner)):
            self._leave(runner, runner.iter)

    def _leave(self, runner: Runner, iteration: int) -> None:
        if self._group is not None:
            # A launcher takes the first exit for a failure, and would kill the main process while it writes.
            distributed.barrier(group=self._group)
        if is_main_process():
            name = _received[0] if _received else "a signal of another process"
            runner.logger.info(f"Stopped by {name}: iteration {iteration} is saved; go on with --resume.")
        raise RunStopped


def _checkpoint_hooks(runner: Runner) -> list[SafeCheckpointHook]:
    hooks = [hook for hook in runner.hooks if isinstance(hook, SafeCheckpointHook)]
    if not hooks:
        raise ValueError("The run was asked to stop and cannot be saved without a SafeCheckpointHook in default_hooks.")
    return hooks


@FUNCTIONS.register_module()
def shield_worker(worker_id: int) -> None:
    """As a `worker_init_fn`, let a worker end when its run ends it, not when a cluster signals every process.

    The run needs the worker's batch to finish its step and save. Like the MMEngine function that it replaces, it seeds
    the workers of each rank differently.
    """
    seed_worker(get_rank())
    # Ctrl-C reaches all processes of a terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # macOS lacks this function, without which a process cannot tell who sent a signal.
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_for, args=(os.getppid(),), daemon=True).start()


def _end_for(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
