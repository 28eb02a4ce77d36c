"""Files that are either whole or not there."""

import os
import tempfile
from pathlib import Path

from mmengine.fileio import LocalBackend, register_backend

__all__ = ["AtomicBackend", "remove_leftovers", "write_atomically"]


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write a file under a temporary name in the same folder, force it to disk, then rename it.

    A process that is killed, or a machine that stops, leaves the old file or the new one, never half of one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes the file private; a checkpoint has the permissions of any other file.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if os.name == "posix":
        # The rename itself reaches the disk with its folder.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def remove_leftovers(folder: str | Path) -> None:
    """Remove the temporary files of checkpoints that a killed process left in a folder."""
    for path in Path(folder).glob(".*.pth.*.tmp"):
        path.unlink(missing_ok=True)


class AtomicBackend(LocalBackend):
    """MMEngine's local storage with atomic writing; chosen by `backend_args=dict(backend="soft_vit.atomic")`."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        write_atomically(filepath, obj)

    def put_text(self, obj: str, filepath: str | Path, encoding: str = "utf-8") -> None:
        write_atomically(filepath, obj.encode(encoding))


register_backend("soft_vit.atomic", AtomicBackend, force=True)
