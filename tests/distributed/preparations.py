"""What a test does to the training of another process before it begins: `start(preparation=Strike(3).install)`."""

import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


def around_step(step: int, before: Callable, after: Callable = lambda: None) -> None:
    """Call functions before and after a training step of this process, counted from 1."""
    from soft_vit.engine.resume.loops import ExactEpochLoop

    run_iter = ExactEpochLoop.run_iter

    def run(loop: ExactEpochLoop, index: int, batch: dict) -> None:
        now = loop.iter + 1 == step
        if now:
            before()
        run_iter(loop, index, batch)
        if now:
            after()

    ExactEpochLoop.run_iter = run


@dataclass(frozen=True)
class Strike:
    """A signal that a process sends to itself, or to its group, in a training step or the first writing after it.

    place: "before" or "after" the step; "writing", with half a checkpoint in its temporary file; "renamed", before the
    note about it is written.
    """

    step: int
    place: str = "after"
    number: int = signal.SIGKILL
    group: bool = False

    def fall(self) -> None:
        if not self.group:
            os.kill(os.getpid(), self.number)
        elif (messenger := os.fork()) == 0:
            # To the workers a signal of their own parent is another thing than one from outside.
            os.killpg(0, self.number)
            os._exit(0)
        else:
            os.waitpid(messenger, 0)

    def install(self) -> None:
        """Arm the training of this process."""
        from soft_vit.weights import files

        def before() -> None:
            if self.place == "before":
                self.fall()
            if self.place == "writing":
                files.os.fsync = lambda file: (os.ftruncate(file, os.fstat(file).st_size // 2), self.fall())
            if self.place == "renamed":
                files.os.replace = lambda old, new: (os.rename(old, new), self.fall())

        around_step(self.step, before, lambda: self.fall() if self.place == "after" else None)


@dataclass(frozen=True)
class FullDisk:
    """From a step on no file can grow beyond 64 KB, a fraction of a checkpoint."""

    step: int

    def install(self) -> None:
        around_step(self.step, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16)))


@dataclass(frozen=True)
class Record:
    """Writes each rank's buffers before and after each checkpoint between epochs into a folder."""

    folder: Path

    def install(self) -> None:
        from mmengine.dist import get_rank

        from soft_vit.engine import SafeCheckpointHook

        save = SafeCheckpointHook._save_checkpoint_with_step

        def save_and_record(hook: SafeCheckpointHook, runner: object, step: int, meta: dict) -> None:
            before = {name: value.clone() for name, value in runner.model.module.model.named_buffers()}
            save(hook, runner, step, meta)
            after = {name: value.clone() for name, value in runner.model.module.model.named_buffers()}
            if not hook.by_epoch:
                torch.save({"before": before, "after": after}, self.folder / f"buffers_{get_rank()}_{step}")

        SafeCheckpointHook._save_checkpoint_with_step = save_and_record
