"""Write checkpoints that survive a crash."""

import copy
import math
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mmengine.dist import broadcast, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.optim import ZeroRedundancyOptimizer
from mmengine.runner import Runner

from soft_vit.engine.models.notes import spec_of_run
from soft_vit.registry import HOOKS, register
from soft_vit.weights.files import write_atomically
from soft_vit.weights.read import NOTES_KEY, first_not_finite

# The parts of a checkpoint that a resumed run starts from.
_FINITE_PARTS = ("state_dict", "ema_state_dict", "optimizer")


class AtomicBackend(LocalBackend):
    """MMEngine's local storage with atomic writing; chosen by `backend_args=dict(backend="soft_vit.atomic")`."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        write_atomically(filepath, obj)


register_backend("soft_vit.atomic", AtomicBackend, force=True)


@register(HOOKS)
class SafeCheckpointHook(CheckpointHook):
    """MMEngine's CheckpointHook with atomic writing, and the same arguments.

    Old files are removed after the next one is written. All ranks take the main one's buffers, such as BatchNorm's
    statistics, at the start and with each checkpoint. A checkpoint has the record of its model, see `spec_of_run`.

    max_keep_ckpts: -1 for all; keep at least 2, since the newest may be damaged. saved_iter: the iteration of the
    newest checkpoint, None before the first. Raises ValueError for a file that cannot be written, and for values that
    are not finite; earlier files stay.
    """

    def __init__(self, *args: Any, max_keep_ckpts: int = 2, backend_args: dict | None = None, **kwargs: Any) -> None:
        backend_args = backend_args or {"backend": "soft_vit.atomic"}
        super().__init__(*args, max_keep_ckpts=max_keep_ckpts, backend_args=backend_args, **kwargs)
        if self.args:
            # MMEngine would pass them to the function that writes, which takes none.
            raise ValueError(f"SafeCheckpointHook must have arguments of CheckpointHook, got {', '.join(self.args)}.")
        self.saved_iter: int | None = None
        self._due = False

    def before_train(self, runner: Runner) -> None:
        super().before_train(runner)
        # Each rank has drawn random features of its own, which DDP leaves alone unless it broadcasts buffers.
        _share_buffers(runner)
        if runner._resume:
            self.saved_iter = runner.iter
            # MMEngine keeps one list for all hooks of this kind.
            kept = self._kept(runner.epoch if self.by_epoch else runner.iter)
            self.keep_ckpt_ids = deque(kept, self.max_keep_ckpts if self.max_keep_ckpts > 0 else None)
        if is_main_process():
            # Temporary files that a killed process left.
            for path in Path(self.out_dir).glob(".*.pth.*.tmp"):
                path.unlink(missing_ok=True)

    def _kept(self, newest: float = math.inf) -> list[int]:
        """Return the numbers of this hook's existing checkpoints, up to `newest`, sorted."""
        name = re.compile(re.escape(self.filename_tmpl).replace(r"\{\}", r"(\d+)"))
        matches = (name.fullmatch(path.name) for path in Path(self.out_dir).glob("*"))
        return sorted(int(match[1]) for match in matches if match and int(match[1]) <= newest)

    def _is_first(self, runner: Runner) -> bool:
        """Return whether this hook does what a run with several hooks of this kind needs once."""
        return next(hook for hook in runner.hooks if isinstance(hook, SafeCheckpointHook)) is self

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if not self._is_first(runner):
            return
        if name := first_not_finite({part: checkpoint.get(part) for part in _FINITE_PARTS}):
            raise ValueError(f"{name} must be finite; load_from the newest checkpoint with a lower learning rate.")
        if (spec := spec_of_run(runner)) is not None:
            checkpoint["meta"][NOTES_KEY] = spec.to_dict()

    def every_n_train_iters(self, runner: Runner, n: int, start: int = 0) -> bool:
        """Put off a checkpoint until the end of a window of accumulated gradients, which are not saved."""
        self._due |= super().every_n_train_iters(runner, n, start)
        now = self._due and runner.optim_wrapper.should_update()
        self._due &= not now
        return now

    def before_val_epoch(self, runner: Runner) -> None:
        if self._is_first(runner):
            _share_buffers(runner)

    def save_between(self, runner: Runner) -> None:
        """Write a checkpoint after an iteration at which none is due, as `stopped_iter_<iterations>.pth`.

        It is removed once there are two regular checkpoints or another one of its kind, and when the run has ended.
        """
        if not self.by_epoch:
            self._save_checkpoint(runner)
            return
        iteration = runner.iter + 1
        name = f"stopped_iter_{iteration}.pth"
        _share_buffers(runner)
        _send_optimizer(runner)
        with self._in_safe_order():
            self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
            runner.message_hub.update_info("last_ckpt", self.last_ckpt)
            meta = {"epoch": runner.epoch, "iter": iteration}
            runner.save_checkpoint(self.out_dir, name, meta=meta, by_epoch=False, backend_args=self.backend_args)
        self._note(runner, iteration)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        _share_buffers(runner)
        if self.save_optimizer:
            _send_optimizer(runner)
        with self._in_safe_order():
            super()._save_checkpoint_with_step(runner, step, meta)
        # MMEngine has written the note before, but not atomically.
        self._note(runner, meta["iter"])

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        # MMEngine would save the newest one again, after the validation with which a resumed run begins.
        with patch.object(self, "last_ckpt", None), self._in_safe_order():
            super()._save_best_checkpoint(runner, metrics)

    @contextmanager
    def _in_safe_order(self) -> Iterator[None]:
        """Put off the removal of old files until the block has ended without an error."""
        backend, removals = self.file_backend, []
        self.file_backend = copy.copy(backend)
        for name in ("remove", "rmtree"):
            setattr(self.file_backend, name, lambda path, name=name: removals.append((getattr(backend, name), path)))
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise ValueError(f"{self.out_dir} must take a checkpoint ({why}); make room, then --resume.") from error
        finally:
            self.file_backend = backend
        for remove, path in removals:
            # A run that began in another folder leaves the best one there.
            if Path(path).resolve().parent == Path(self.out_dir).resolve():
                remove(path)

    def _note(self, runner: Runner, iteration: int) -> None:
        self.saved_iter = iteration
        if is_main_process():
            write_atomically(Path(runner.work_dir) / "last_checkpoint", self.last_ckpt.encode())
            if Path(self.last_ckpt).name.startswith("stopped_") or self.max_keep_ckpts == 1 or len(self._kept()) > 1:
                self._remove_stopped(runner)

    def after_train(self, runner: Runner) -> None:
        super().after_train(runner)
        if is_main_process():
            self._remove_stopped(runner)

    def _remove_stopped(self, runner: Runner) -> None:
        """Remove the checkpoints of `save_between` but for the newest checkpoint."""
        note = Path(runner.work_dir) / "last_checkpoint"
        newest = Path(note.read_text()).name if note.is_file() else None
        for path in Path(self.out_dir).glob("stopped_iter_*.pth"):
            if newest not in (None, path.name):
                path.unlink()


def _share_buffers(runner: Runner) -> None:
    """Give all ranks the main one's buffers of the model and of its average.

    With a mean over ranks, a run that is stopped and resumed would differ from an uninterrupted one.
    """
    averages = [hook.ema_model for hook in runner.hooks if getattr(hook, "ema_model", None) is not None]
    for model in (runner.model, *averages):
        for buffer in model.buffers():
            broadcast(buffer)


def _send_optimizer(runner: Runner) -> None:
    """Send the parts of an optimizer's state that the ranks hold to the main one, which receives them as it saves."""
    optimizer = getattr(runner.optim_wrapper, "optimizer", None)
    if isinstance(optimizer, ZeroRedundancyOptimizer) and not is_main_process():
        optimizer.consolidate_state_dict()
