"""What a test does to the training of another process before it begins: `start(preparation=Strike(3).install)`."""

import json
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
    """From a step on no file can grow beyond 1 MB, a fraction of a checkpoint."""

    step: int

    def install(self) -> None:
        around_step(self.step, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20)))


@dataclass(frozen=True)
class Record:
    """Writes each rank's losses into a folder, and its buffers before and after each checkpoint between epochs.

    fix_norms: leave BatchNorm's statistics as they begin, for training as well; no buffers are written.
    """

    folder: Path
    fix_norms: bool

    def install(self) -> None:
        from mmengine.dist import get_rank
        from torch.nn.modules.batchnorm import _BatchNorm

        from soft_vit.engine import SafeCheckpointHook, SafeOptimWrapper, TimmProgressClassifier

        update, save, mode = (
            SafeOptimWrapper.update_params,
            SafeCheckpointHook._save_checkpoint_with_step,
            TimmProgressClassifier.train,
        )

        def update_and_record(wrapper: SafeOptimWrapper, loss: torch.Tensor, **kwargs: object) -> None:
            with open(self.folder / f"losses_{get_rank()}", "a") as file:
                file.write(json.dumps(loss.item()) + "\n")
            update(wrapper, loss, **kwargs)

        def save_and_record(hook: SafeCheckpointHook, runner: object, step: int, meta: dict) -> None:
            before = {name: value.clone() for name, value in runner.model.module.model.named_buffers()}
            save(hook, runner, step, meta)
            after = {name: value.clone() for name, value in runner.model.module.model.named_buffers()}
            if not hook.by_epoch:
                torch.save({"before": before, "after": after}, self.folder / f"buffers_{get_rank()}_{step}")

        def train_but_norms(model: TimmProgressClassifier, training: bool = True) -> TimmProgressClassifier:
            mode(model, training)
            for module in model.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
            return model

        SafeOptimWrapper.update_params = update_and_record
        if self.fix_norms:
            TimmProgressClassifier.train = train_but_norms
        else:
            SafeCheckpointHook._save_checkpoint_with_step = save_and_record

    def losses(self, rank: int) -> torch.Tensor:
        lines = (self.folder / f"losses_{rank}").read_text().splitlines()
        return torch.tensor([json.loads(line) for line in lines], dtype=torch.float64)
