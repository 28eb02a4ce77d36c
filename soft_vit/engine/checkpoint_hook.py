"""Writing checkpoints that a crash cannot destroy, and finding the newest one."""

import re
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from soft_vit.engine.atomic_storage import write_atomically
from soft_vit.engine.errors import UserError
from soft_vit.registry import HOOKS, register

__all__ = ["SafeCheckpointHook", "find_newest_checkpoint"]


@register(HOOKS)
class SafeCheckpointHook(CheckpointHook):
    """MMEngine's CheckpointHook with atomic writing; takes the same arguments.

    max_keep_ckpts: at least 2, or -1 for all, because the oldest file goes before the newest is written. Raises
    UserError (a ValueError) for 0 or 1.
    """

    def __init__(self, *args: Any, max_keep_ckpts: int = 2, backend_args: dict | None = None, **kwargs: Any) -> None:
        if max_keep_ckpts in (0, 1):
            raise UserError(
                f"max_keep_ckpts is {max_keep_ckpts}, which could leave no checkpoint at all after a crash; "
                "set it to 2 or more, or to -1 to keep all."
            )
        backend_args = backend_args or {"backend": "soft_vit.atomic"}
        super().__init__(*args, max_keep_ckpts=max_keep_ckpts, backend_args=backend_args, **kwargs)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        super()._save_checkpoint_with_step(runner, step, meta)
        if is_main_process():
            # Written again: MMEngine's own writing of this file is not atomic.
            write_atomically(Path(runner.work_dir) / "last_checkpoint", self.last_ckpt.encode())


def find_newest_checkpoint(work_dir: str | Path) -> Path | None:
    """The checkpoint that training wrote last in a folder, or None.

    The note `last_checkpoint` decides, by its file name alone, because the folder may have moved since; without a
    usable note it is the highest epoch or iteration.
    """
    work_dir = Path(work_dir)
    note = work_dir / "last_checkpoint"
    if note.is_file():
        noted = work_dir / Path(note.read_text().strip() or "-").name
        if noted.is_file():
            return noted
    numbered = []
    for path in work_dir.glob("*.pth"):
        found = re.fullmatch(r"(?:epoch|iter)_(\d+)\.pth", path.name)
        if found:
            numbered.append((int(found.group(1)), path))
    return max(numbered)[1] if numbered else None
