"""Choose the checkpoint that a run continues from, alike in all processes, also after torchrun has restarted them.

A launcher with `--max-restarts` starts its processes again with the same command. They find the name of their launcher
in the work directory, and continue from the checkpoints of their own run, not from those of an earlier one.
"""

import json
import os
import platform
from pathlib import Path

from mmengine.dist import all_gather_object, broadcast_object_list, is_main_process

from soft_vit.engine.resume.read import find_newest_checkpoint
from soft_vit.weights.files import write_atomically

# The names of the launchers of the run that began last in a folder; the file is as old as that run.
_LAUNCHERS = ".launchers"


def restarting_launcher() -> str | None:
    """Return a name of the torchrun that would start this process again, or None if it would not."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) == 0 or not file:
        return None
    # In <a temporary folder of the launcher>/attempt_<n>/<rank>.
    return f"{platform.node()}:{Path(file).parents[2]}"


def choose_checkpoint(work_dir: str | Path, resume: str | None) -> str | None:
    """Return the path of the checkpoint to continue from; None to begin. All processes of a run call it together.

    resume: "auto" for the newest in the folder, or another path or None, unless a launcher has restarted the run; then
    the newest that it has written, if any. The main process chooses.
    """
    began = 0.0 if resume == "auto" else _began(work_dir)
    chosen = [None if resume == "auto" else resume]
    if is_main_process() and began is not None and (newest := find_newest_checkpoint(work_dir, began)):
        chosen = [str(newest)]
    broadcast_object_list(chosen)
    return chosen[0]


def note_launchers(work_dir: str | Path) -> None:
    """Note that a run begins, unless its launchers have begun it before. All processes of a run call it together."""
    launchers = _launchers()
    if launchers and _began(work_dir) is None and is_main_process():
        write_atomically(Path(work_dir) / _LAUNCHERS, json.dumps(launchers).encode())


def _launchers() -> list[str]:
    return sorted({name for name in all_gather_object(restarting_launcher()) if name})


def _began(work_dir: str | Path) -> float | None:
    """Return when the launchers of this run began it, as a time of files; None if they did not."""
    launchers, note = _launchers(), Path(work_dir) / _LAUNCHERS
    # A machine of the run may have been replaced.
    known = json.loads(note.read_text()) if launchers and note.is_file() else ()
    return note.stat().st_mtime if {*known} & {*launchers} else None
